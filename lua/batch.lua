-- One batch: a list of operations on locks, in the order in which they were
-- queued, in one atomic step. One operation's error never fails another one:
-- each has an answer of its own.
--
-- KEYS     for each operation its lock key L, then its fence key F where the
--          quorum issues fencing tokens (a release has no F)
-- ARGV[1]  "1" when the quorum issues fencing tokens, else "0"
-- ARGV[2]  the key that marks that somebody waits on this instance; "" where nobody can be told
-- ARGV[3]  the number of this batch, which the answer repeats: an answer that comes twice is not taken for another one's
-- ARGV[4]  the name of this Locker among those that wait, 8 letters
-- ARGV     then for each operation its letter and its arguments:
--
--   a owner ttl keep seed    acquire. A fresh grant counts F up, so that no two grants of one instance share a
--                            number. A repeat, when the reply was lost, is granted again and changes nothing.
--   w owner ttl keep seed since
--                            acquire, for one that waits since then, in microseconds. If L is another owner's, queue
--                            up here: the one who has waited longest is told first, the same on every instance.
--   q since                  queue up for L, and do not ask for it: a look whether it is held still, which leaves
--                            nothing to release.
--   r owner token            raise F to token: for the owner only, and never down.
--   e owner ttl keep token shorter
--                            extend. An F beyond token means that somebody was granted a larger one since. Unless
--                            shorter is "1", it never brings an expiry nearer: a request that was held up for long
--                            must not undo a newer one.
--   h owner ttl keep token   heal: set L again where it is absent and F is not beyond token. It is sent only
--                            after a majority confirmed the extend of the same round.
--   d owner tell             release: delete L if it is the owner's. F stays, and so stays the order. If L is free
--                            then, and tell is not "0", tell the first Locker in the queue to ask now, and if tell
--                            is "2" the second one to do so a little later. Who is told leaves the queue, and so
--                            does this Locker: what it released is for others first.
--
-- A message names the release, by the first letters of owner, and L. They are too few to guess the owner from.
--
-- ttl and keep, the expiry of F, are in milliseconds; seed and token are whole
-- numbers below 2^53, in decimal. They are sent, and ignored, without fencing.
--
-- Answer: one string, with the number of the batch, and then a line for each operation:
--
--   g F        granted, with the fence value (0 without fencing); a release: 1 if somebody was told, else 0
--   m          granted, a release: but nobody may be told
--   e F left   granted, an extend: with the fence value, and the milliseconds that L had left before it
--   r F ttl    refused: another owner's, for ttl more milliseconds (-1: for ever)
--   n          refused: the lock is nobody's
--   n m        the same, a release: and nobody may be told
--   x          refused: the lock is another owner's; a heal: or somebody was granted a larger number since
--   t F        failed: the lock is the owner's, with a fence beyond its token
--   f text     failed: this instance can't tell or can't vote, and text says why
--
-- Needs the commands GET, SET, DEL, PTTL and PEXPIRE, and no other right. PUBLISH
-- is used where it is allowed.
--
-- A plain acquire and a plain release are all that most batches have, and stand in the loop at the end. What the rest
-- needs is made when something needs it: for a batch of one, to make the functions takes an instance as long as to run it.

local call, find, type = redis.pcall, string.find, type
local KEYS, ARGV = KEYS, ARGV
local fenced, mark = ARGV[1] == '1', ARGV[2]
local k, a = 1, 5 -- where the keys and the arguments of the operation begin
local waits -- whether somebody waits here, for whatever; nil before the first look

local tools
local function more()
  if tools then return tools end
  tools = {}
  local format, sub = string.format, string.sub

  local no_token = 'f the fence key holds no token'

  local function failed(reply)
    return 'f ' .. string.gsub(reply.err, '[\r\n]', ' ')
  end
  tools.failed = failed

  -- number returns what s, the text of a fence key, counts; nil if that is no
  -- token: tonumber alone would take '0x10', '1e3' and 'nan', too, and a double
  -- counts exactly below 2^53 only.
  local function number(s)
    if #s <= 16 and find(s, '^[0-9]+$') then
      local n = tonumber(s)
      if n < 9007199254740992 then return n end
    end
  end

  -- fence reads F: its number and its text; 0 and nil where it is absent; nil and
  -- an answer where it can't be used.
  local function fence(F)
    local s = call('GET', F)
    if not s then return 0, nil end
    if type(s) == 'table' then return nil, failed(s) end
    local n = number(s)
    if n then return n, s end
    return nil, no_token
  end

  -- refusal tells apart the three cases in which L is not owner's; nil where it is.
  local function refusal(L, owner)
    local holder = call('GET', L)
    if holder == owner then return nil end
    if not holder then return 'n' end
    if type(holder) == 'table' then return failed(holder) end
    return 'x'
  end
  tools.refusal = refusal

  -- taken is the refusal for a lock that is another owner's, with what F counts.
  local function taken(L, n)
    local left = call('PTTL', L)
    if type(left) == 'table' then return failed(left) end
    return format('r %.0f %.0f', n, left)
  end

  -- keep_on sets F to token, and the expiries of L and F to ttl and keep, unless
  -- that would bring them nearer and shorter does not ask for it. It returns the
  -- answer of a failure, or nil and what L had left before. F is written only
  -- where it differs, so that a holder can extend on an instance that is full.
  local function keep_on(L, F, ttl, keep, token, text, shorter)
    local left = call('PTTL', L)
    if type(left) == 'table' then return failed(left) end
    local before = left
    local later = shorter == '1' or left < tonumber(ttl)
    local done
    if F and text ~= token then
      if later or not text then
        done = call('SET', F, token, 'PX', keep)
      else
        done = call('SET', F, token, 'KEEPTTL')
      end
      if done.err then return failed(done) end
    elseif F and later then
      done = call('PEXPIRE', F, keep)
      if type(done) == 'table' then return failed(done) end
    end
    -- Where nothing is to change, it is written all the same: a replica that has the
    -- lock, and can't hold it, must not confirm.
    if later then left = ttl end
    done = call('PEXPIRE', L, left)
    if type(done) == 'table' then return failed(done) end
    return nil, before
  end

  -- count counts text, what F holds, up where it is not simply smaller than seed. It returns the new text, or nil and
  -- an answer where it can't.
  function tools.count(text, seed)
    if type(text) == 'table' then return nil, failed(text) end
    local n = number(text)
    if not n then return nil, no_token end
    if n < tonumber(seed) then return seed end
    if n == 9007199254740991 then return nil, 'f the fence key has counted to its end' end
    return format('%.0f', n + 1)
  end

  -- The queue for L is one string: for each Locker that waits since when, and its
  -- name, those that wait longest first. Both have a fixed length. Who would stand
  -- beyond the end is not told, and asks now and then.
  local me, entry, most = ARGV[4], 26, 64 * 26

  local function queue(L)
    local q = call('GET', L .. '{}:waiting')
    if type(q) == 'string' and #q % entry == 0 then return q end
    return ''
  end

  local function set_queue(L, q)
    if q == '' then
      call('DEL', L .. '{}:waiting')
    else
      call('SET', L .. '{}:waiting', q, 'PX', 2000)
    end
  end

  local function queue_up(L, since)
    if mark == '' or #since ~= 16 then return end
    call('SET', mark, '1', 'PX', 2000)
    waits = true
    local q = queue(L)
    if not find(q, ' ' .. me .. '\n', 1, true) then
      local before = #q
      while before > 0 and sub(q, before - entry + 1, before - 10) > since do before = before - entry end
      q = sub(sub(q, 1, before) .. since .. ' ' .. me .. '\n' .. sub(q, before + 1), 1, most)
    end
    set_queue(L, q)
  end

  -- wake tells who is first in the queue for L, and listens. It returns the answer of the release.
  function tools.wake(L, owner, tell)
    local q = queue(L)
    if q == '' then return 'g 0' end
    local own = find(q, ' ' .. me .. '\n', 1, true)
    if own then q = sub(q, 1, own - 17) .. sub(q, own + 10) end
    local news, answer = 'now ', 'g 0'
    while q ~= '' do
      local heard = call('PUBLISH', mark .. ':' .. sub(q, 18, 25), news .. sub(owner, 1, 8) .. ' ' .. L)
      if type(heard) == 'table' then return 'm' end
      if news == 'later ' then break end
      q = sub(q, entry + 1) -- who does not listen has gone
      if heard > 0 then
        answer = 'g 1'
        if tell ~= '2' then break end
        news = 'later '
      end
    end
    set_queue(L, q)
    return answer
  end

  -- held answers an acquire that finds L held, and text in F; who waits since then queues up.
  function tools.held(L, F, text, owner, since)
    local answer = refusal(L, owner)
    if answer == 'x' then
      answer = taken(L, tonumber(text or '0'))
      if since and sub(answer, 1, 1) == 'r' then queue_up(L, since) end
      return answer
    end
    if not answer and F and not text then return 'f the fence key is gone' end
    return answer or 'g ' .. (text or '0')
  end

  function tools.q(L, F)
    queue_up(L, ARGV[a + 1])
    local answer = refusal(L, '')
    if answer ~= 'x' then return answer end
    local n, fault = 0, nil
    if F then
      n, fault = fence(F)
      if not n then return fault end
    end
    return taken(L, n)
  end

  function tools.r(L, F)
    local owner, token = ARGV[a + 1], ARGV[a + 2]
    local answer = refusal(L, owner)
    if answer then return answer end
    local n, text = fence(F)
    if not n then return text end
    if not text then return 'f the fence key is gone' end
    if n > tonumber(token) then return 't ' .. text end
    local done = call('SET', F, token, 'KEEPTTL')
    if done.err then return failed(done) end
    return 'g ' .. token
  end

  function tools.e(L, F)
    local owner, ttl, keep, token, shorter = ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 4], ARGV[a + 5]
    local answer = refusal(L, owner)
    if answer then return answer end
    local n, text
    if F then
      n, text = fence(F)
      if not n then return text end
      if not text then return 'f the fence key is gone' end
      if n > tonumber(token) then return 't ' .. text end
    end
    local fault, before = keep_on(L, F, ttl, keep, token, text, shorter)
    return fault or format('e %s %.0f', token, before)
  end

  function tools.h(L, F)
    local owner, ttl, keep, token = ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 4]
    local n, text
    if F then
      n, text = fence(F)
      if not n then return text end
      if n > tonumber(token) then return 'x' end
    end
    local done = call('SET', L, owner, 'PX', ttl, 'NX')
    if not done then return 'x' end
    if done.err then return failed(done) end
    local fault = keep_on(L, F, ttl, keep, token, text, '1')
    if fault then call('DEL', L) end
    return fault or 'g ' .. token
  end

  tools.width = { w = 6, q = 2, r = 3, e = 6, h = 5 }
  return tools
end

local function acquire(L, F, owner, since)
  local text, f, fault = nil, '0', nil
  if F then
    text, f = call('GET', F), ARGV[a + 4]
    -- Mostly the seed is the larger one, and two texts of as many digits tell that as
    -- their numbers do.
    if text and not (type(text) == 'string' and #text == #f and text < f and find(text, '^%d+$')) then
      f, fault = more().count(text, f)
      if fault then return fault end
    end
  end
  local done = call('SET', L, owner, 'PX', ARGV[a + 2], 'NX')
  if not done then return more().held(L, F, text, owner, since) end
  if done.err then return more().failed(done) end
  if F then
    done = call('SET', F, f, 'PX', ARGV[a + 3])
    if done.err then
      -- A grant without its number would stand outside the order.
      call('DEL', L)
      return more().failed(done)
    end
  end
  return 'g ' .. f
end

local function release(L, owner, tell)
  local answer, holder = 'g 0', call('GET', L)
  if holder == owner then
    local done = call('DEL', L)
    if type(done) == 'table' then return more().failed(done) end
  elseif holder then
    return more().refusal(L, owner)
  else
    answer = 'n'
  end
  if tell ~= '0' and mark ~= '' then
    if waits == nil then waits = call('GET', mark) == '1' end
    if waits then
      local told = more().wake(L, owner, tell)
      if holder then return told end
      if told == 'm' then answer = 'n m' end
    end
  end
  return answer
end

local answers, n, last = { ARGV[3] }, 1, #ARGV
while a <= last do
  local letter, L = ARGV[a], KEYS[k]
  local F = fenced and KEYS[k + 1]
  local answer
  if letter == 'a' then
    answer = acquire(L, F, ARGV[a + 1])
    a = a + 5
  elseif letter == 'd' then
    answer, F = release(L, ARGV[a + 1], ARGV[a + 2]), nil
    a = a + 3
  else
    if letter == 'w' then
      answer = acquire(L, F, ARGV[a + 1], ARGV[a + 5])
    else
      answer = more()[letter](L, F)
    end
    a = a + more().width[letter]
  end
  k = k + (F and 2 or 1)
  n = n + 1
  answers[n] = answer
end
return table.concat(answers, '\n')

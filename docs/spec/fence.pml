/* Fencing tokens from a quorum: the rules of lua/batch.lua, redlock.go and lock.go, for Spin.
 * README.md says what is checked and what is not; check.sh runs it.
 *
 * P acquisitions of one resource on N instances; an acquisition is one round, under an owner of its own. Every step
 * is one operation of the script on one instance, or one decision of a client, and comes at any time at which it is
 * possible. That is the worst network there is: a request or an answer may be late, overtaken, lost (the step never
 * comes) or repeated (it comes again). There is no time in it: a lock key may vanish at any moment.
 *
 *   N       instances, 3 to 5
 *   P       acquisitions, 2 or 3
 *   FMAX    the fence counts to here, 2 to 5, and no further (in the script: to 2^53-1)
 *   MAXG    fresh grants that an owner can get from one instance, 1 or 2: 2 is an acquire and its repeat
 *   INITF   each fence starts at any number up to this, 0 to 2; 0 is absent
 *   SEEDS   1: seeds are any numbers  0: all are 1, so that fences only count up
 *   EXTEND  1: with extend and heal, and with claim E
 *   FORGET  so often an instance forgets: each of its keys falls back to an older state
 *   ONLY_O  without claim D, which most mutants break sooner than claim O
 *
 * M_... are mutants: each breaks a rule, and then a claim must fail. R_... are relaxations: they break a rule on which
 * no claim here rests. W is the number of a witness: something that must be possible, or else the claims say little.
 */
#ifndef N
#define N 3
#endif
#ifndef P
#define P 2
#endif
#ifndef FMAX
#define FMAX 3
#endif
#ifndef MAXG
#define MAXG 2
#endif
#ifndef INITF
#define INITF 0
#endif
#ifndef SEEDS
#define SEEDS 1
#endif
#ifndef EXTEND
#define EXTEND 0
#endif
#ifndef FORGET
#define FORGET 0
#endif
#ifndef W
#define W 0
#endif

/* ---- What there is. A set of instances, or of owners, is a set of bits. ---------------------------------------- */

byte L[N];         /* of an instance: the lock key; 0 is absent */
byte F[N];         /* of an instance: the fence key; 0 is absent */
#define OWNER(p) ((p)+1)
#define NAME(p)  ('A'+(p))

#define IDLE     0
#define ASKING   1 /* acquires are sent */
#define DECIDED  2 /* a majority granted and the token is fixed; raises are sent */
#define HELD     3 /* completed: the token stood on a quorum, and the caller has it */

byte phase[P];     /* of an acquisition, as all that follows */
byte seed[P];
byte token[P];
byte before[P];    /* the largest token of all acquisitions that had completed when this one began */
byte fresh[P];     /* the instances that granted freshly, and ... */
byte again[P];     /* ... those that did so once more, for a repeat that came after the lock key had vanished */
byte answers[P*(FMAX+1)];
#define GRANTED(p,f) answers[(p)*(FMAX+1)+(f)] /* the instances that answered "granted, f" */
byte stood[P];     /* the instances that voted for the token: it was seen there as the fence, with us as the owner */
#ifdef M_COUNTREPLIES
byte twice[P];     /* those that did so twice */
#endif

byte largest;      /* the largest token of all acquisitions that have completed */

#if EXTEND
byte confirms[P];  /* the instances that confirmed the extend that is out */
bit  overtaken[P]; /* when it began, an acquisition with a larger token had completed */
bit  mayHeal[P];   /* an extend was confirmed by a quorum: from here on its heals may be under way */
#endif

#if FORGET
byte forgets;      /* how often an instance has forgotten */
byte bar[N];       /* of an instance: the largest fence that it ever forgot */
byte had[N];       /* of an instance: the owners that its lock key has had */
#endif

#define ALL      ((1<<N)-1)
#define BIT(i)   (1<<(i))
#define HAS(s,i) (((s)>>(i))&1)
#define ADD(s,i) s = s | BIT(i)
#define SIZE(s)  (HAS(s,0)+HAS(s,1)+HAS(s,2)+HAS(s,3)+HAS(s,4))
#define MAX(a,b) ((a)>(b) -> (a) : (b))

/* One step for each value of the fence; and the instances that granted with f or less. */
#if FMAX==2
#define VALUES(step) step(1) step(2)
#define UPTO(p,f) (GRANTED(p,1) | ((f)>1 -> GRANTED(p,2) : 0))
#elif FMAX==3
#define VALUES(step) step(1) step(2) step(3)
#define UPTO(p,f) (GRANTED(p,1) | ((f)>1 -> GRANTED(p,2) : 0) | ((f)>2 -> GRANTED(p,3) : 0))
#elif FMAX==4
#define VALUES(step) step(1) step(2) step(3) step(4)
#define UPTO(p,f) (GRANTED(p,1) | ((f)>1 -> GRANTED(p,2) : 0) | ((f)>2 -> GRANTED(p,3) : 0) | ((f)>3 -> GRANTED(p,4) : 0))
#elif FMAX==5
#define VALUES(step) step(1) step(2) step(3) step(4) step(5)
#define UPTO(p,f) (GRANTED(p,1) | ((f)>1 -> GRANTED(p,2) : 0) | ((f)>2 -> GRANTED(p,3) : 0) | ((f)>3 -> GRANTED(p,4) : 0) \
                   | ((f)>4 -> GRANTED(p,5) : 0))
#endif

/* ---- The rules, and what breaks each. -------------------------------------------------------------------------- */

/* A quorum is a majority: any two share an instance. */
#if defined(M_FASTQ1) || defined(M_HALF) /* one fewer: of 4 instances that is half of them */
#define Q (N/2)
#else
#define Q (N/2+1)
#endif

/* What a fresh grant counts the fence up to: past what it was, and to the seed at least. */
#if defined(M_NOCOUNT)
#define COUNTUP(p,z) MAX(F[z], seed[p])
#elif defined(M_NOINCR)     /* once for an owner: a grant to a repeat is nothing new */
#define COUNTUP(p,z) (HAS(fresh[p],z) -> F[z] : MAX(F[z]+1, seed[p]))
#elif defined(M_SEEDALONE)
#define COUNTUP(p,z) seed[p]
#elif defined(M_SEEDABSENT) /* a seed is for a fence that is absent */
#define COUNTUP(p,z) (F[z]==0 -> seed[p] : F[z]+1)
#else
#define COUNTUP(p,z) MAX(F[z]+1, seed[p])
#endif

/* A repeat, of an acquire that was granted, changes nothing. */
#ifdef R_REPEATCOUNTS
#define REPEATUP(z) F[z]+1
#define MAYREPEAT(p,z) (F[z]<FMAX)
#else
#define REPEATUP(z) F[z]
#define MAYREPEAT(p,z) (phase[p]==ASKING || phase[p]==DECIDED) /* else nobody hears of it */
#endif

/* The token is the largest answer; and it takes answers of a majority of the instances. */
#ifdef R_ANYTOKEN
#define VOTERS(p,f) UPTO(p,FMAX)
#else
#define VOTERS(p,f) UPTO(p,f)
#endif

/* It has to stand on a quorum of instances; and instances are counted, not answers. */
#if defined(M_NORAISE)
#define STANDS(p) true
#define VOTE(p,z) ADD(stood[p],z)
#elif defined(M_COUNTREPLIES)
#define STANDS(p) (SIZE(stood[p])+SIZE(twice[p]) >= Q)
#define VOTE(p,z) twice[p] = twice[p] | (stood[p] & BIT(z)); ADD(stood[p],z)
#else
#define STANDS(p) (SIZE(stood[p]) >= Q)
#define VOTE(p,z) ADD(stood[p],z)
#endif

/* An instance raises only for its owner, only a fence that is there, and never down. */
#if defined(M_NOOWNER)
#define MAYRAISE(p,z) (F[z]>0 && F[z]<=token[p])
#elif defined(M_NOLE)
#define MAYRAISE(p,z) (L[z]==OWNER(p) && F[z]>0)
#elif defined(R_ABSENT)
#define MAYRAISE(p,z) (L[z]==OWNER(p) && F[z]<=token[p])
#else
#define MAYRAISE(p,z) (L[z]==OWNER(p) && F[z]>0 && F[z]<=token[p])
#endif

/* It confirms an extend only to its owner, only with a fence that is there, and not beyond the owner's token. */
#if defined(M_EXTNOLE)
#define MAYEXTEND(p,z) (L[z]==OWNER(p) && F[z]>0)
#elif defined(R_ABSENT)
#define MAYEXTEND(p,z) (L[z]==OWNER(p) && F[z]<=token[p])
#else
#define MAYEXTEND(p,z) (L[z]==OWNER(p) && F[z]>0 && F[z]<=token[p])
#endif

/* It heals only a lock key that is absent, with a fence not beyond the token, and only for an extend that a quorum
 * confirmed. */
#if defined(M_HEALNOLE)
#define MAYHEAL(p,z) (mayHeal[p] && L[z]==0)
#elif defined(R_HEALANY)
#define MAYHEAL(p,z) (phase[p]==HELD && L[z]==0 && F[z]<=token[p])
#else
#define MAYHEAL(p,z) (mayHeal[p] && L[z]==0 && F[z]<=token[p])
#endif

/* Both bring the fence to the token. */
#if defined(R_NOWRITE)
#define FENCE(p,z) F[z]
#elif defined(M_EXTNOLE) /* nor does it go down */
#define FENCE(p,z) MAX(F[z], token[p])
#else
#define FENCE(p,z) token[p]
#endif

/* Each extend has a tally of its own. */
#ifdef M_OLDVOTES
#define NEWTALLY(p) overtaken[p] = (largest>token[p])
#else
#define NEWTALLY(p) overtaken[p] = 0; confirms[p] = 0
#endif

/* A release leaves the fence. */
#ifdef M_RELEASEF
#define RELEASE(z) L[z] = 0; F[z] = 0
#else
#define RELEASE(z) L[z] = 0
#endif

/* The quarantine: an instance that forgot does what it is asked, but has no vote until every value that existed before
 * is below every later seed. The model has no clock. In it the instance votes for those acquisitions whose seed is
 * larger than all that it forgot.
 */
#if FORGET
#define NOTE(p,z)  ADD(had[z],p)
#define FORGOT(z)  bar[z]>0
#ifdef M_NOQUARANTINE
#define VOTES(p,z) true
#else
#define VOTES(p,z) (seed[p]>bar[z])
#endif
#ifdef M_NOEXTQUARANTINE /* extends need no quarantine */
#define VOTESEXT(p,z) true
#else
#define VOTESEXT(p,z) VOTES(p,z)
#endif
#else
#define NOTE(p,z)  skip
#define FORGOT(z)  false
#define VOTES(p,z) true
#define VOTESEXT(p,z) true
#endif

/* ---- The script: the operations of p on instance z. ------------------------------------------------------------- */

/* The client hears of a grant. Until it decides it keeps all answers, and may decide on any of them, as if the others
 * had not come; afterwards those that are the token are votes for it.
 */
inline answer(p, z) {
  if
  :: phase[p]==ASKING && VOTES(p,z) -> ADD(GRANTED(p,F[z]),z); assert(W!=4 || !(FORGOT(z)))
  :: phase[p]==DECIDED && VOTES(p,z) && F[z]==token[p] -> VOTE(p,z)
  :: else
  fi
}

proctype script(byte p, z) {
end:
  do
  /* acquire, of a lock that is free; late, too: when the round is lost, or won without it, or over */
  :: d_step { phase[p]!=IDLE && L[z]==0 && F[z]<FMAX && !HAS(again[p],z) && (MAXG>1 || !HAS(fresh[p],z)) ->
       F[z] = COUNTUP(p,z);
       L[z] = OWNER(p); NOTE(p,z);
       again[p] = again[p] | (fresh[p] & BIT(z));
       ADD(fresh[p],z);
       printf("  instance %d: acquire of %c granted, fence %d\n", z, NAME(p), F[z]);
       assert(W!=5 || phase[p]!=HELD || F[z]<=token[p]);
       answer(p,z) }

  /* acquire, repeated or heard of again: the lock is ours already */
  :: d_step { L[z]==OWNER(p) && F[z]>0 && MAYREPEAT(p,z) ->
       F[z] = REPEATUP(z);
       printf("  instance %d: acquire of %c repeated, fence %d\n", z, NAME(p), F[z]);
       answer(p,z) }

  /* raise; late, too */
  :: d_step { phase[p]>=DECIDED && MAYRAISE(p,z) ->
       printf("  instance %d: raise of %c, fence %d to %d\n", z, NAME(p), F[z], token[p]);
       assert(W!=1 || phase[p]!=DECIDED || F[z]==token[p] || SIZE(stood[p])!=Q-1);
       F[z] = token[p];
       if
       :: phase[p]==DECIDED && VOTES(p,z) -> VOTE(p,z)
       :: else
       fi }

#if EXTEND
  /* extend; it began just before the first instance that confirms it: earlier would claim less */
  :: d_step { phase[p]==HELD && !HAS(confirms[p],z) && MAYEXTEND(p,z) ->
       printf("  instance %d: extend of %c confirmed, fence %d to %d\n", z, NAME(p), F[z], FENCE(p,z));
       F[z] = FENCE(p,z);
       if
       :: VOTESEXT(p,z) ->
            if
            :: confirms[p]==0 -> overtaken[p] = (largest>token[p])
            :: else
            fi;
            ADD(confirms[p],z)
       :: else
       fi }

  /* heal; late, too */
  :: d_step { MAYHEAL(p,z) ->
       printf("  instance %d: heal of %c, fence %d to %d\n", z, NAME(p), F[z], FENCE(p,z));
       L[z] = OWNER(p); NOTE(p,z);
       F[z] = FENCE(p,z) }
#endif
  od
}

/* ---- What else happens to the keys of instance z. --------------------------------------------------------------- */

/* It forgets: the lock key is gone, or what it was before; the fence is anything below, or gone. */
#define FALL(l,f) \
  :: d_step { forgets<FORGET && F[z]>=(f) && ((l)==0 || HAS(had[z],(l)-((l)>0))) -> \
       printf("  instance %d forgets: lock key %c, fence %d to %d\n", z, ((l)==0 -> '-' : NAME((l)-1)), F[z], f); \
       forgets++; \
       bar[z] = MAX(bar[z], F[z]); \
       L[z] = l; F[z] = f }
#if P==2
#define FALLTO(f) FALL(0,f) FALL(1,f) FALL(2,f)
#else
#define FALLTO(f) FALL(0,f) FALL(1,f) FALL(2,f) FALL(3,f)
#endif

proctype instance(byte z) {
end:
  do
  /* the lock key expires, is evicted, or is released: by its owner or for it, in time or late, once or twice */
  :: d_step { L[z]!=0 ->
       printf("  instance %d: the lock key of %c vanishes\n", z, NAME(L[z]-1));
       RELEASE(z) }
#if FORGET
  FALLTO(0) VALUES(FALLTO)
#endif
  od
}

/* ---- The client of acquisition p. -------------------------------------------------------------------------------- */

/* Owners are alike: they begin in order. */
#define BEGIN(s) \
  :: d_step { phase[p]==IDLE && (p==0 || phase[(p>0 -> p-1 : 0)]!=IDLE) && (SEEDS || (s)==1) -> \
       phase[p] = ASKING; seed[p] = s; before[p] = largest; \
       printf("%c begins, seed %d\n", NAME(p), s) }

#define DECIDE(f) \
  :: d_step { phase[p]==ASKING && GRANTED(p,f)!=0 && SIZE(VOTERS(p,f))>=Q -> \
       phase[p] = DECIDED; token[p] = f; stood[p] = GRANTED(p,f); drop(p); \
       printf("%c decides: the token is %d\n", NAME(p), f) }

inline drop(p) { /* the answers */
  for (v : 1 .. FMAX) { GRANTED(p,v) = 0 }
  v = 0
}

#define HASIT(p,q) ((p)!=(q) && phase[q]==HELD && token[q]==token[p])

proctype client(byte p) {
  byte v;
end:
  do
  VALUES(BEGIN)
  VALUES(DECIDE)

  :: d_step { phase[p]==DECIDED && STANDS(p) ->
       printf("%c completes, token %d\n", NAME(p), token[p]);
       assert(token[p] > before[p]);                                    /* claim O: order in real time */
#ifndef ONLY_O
       assert(!HASIT(p,0) && !HASIT(p,1) && !HASIT(p,P-1));             /* claim D: distinct tokens */
#endif
       phase[p] = HELD; stood[p] = 0; before[p] = 0;
       largest = MAX(largest, token[p]);
       assert(W!=2 || phase[0]!=HELD || phase[1]!=HELD || phase[P-1]!=HELD) }

#ifdef M_REUSE
  /* another round under the same owner */
  :: d_step { phase[p]!=IDLE ->
       printf("%c begins again as the same owner\n", NAME(p));
       phase[p] = ASKING; before[p] = largest; token[p] = 0; stood[p] = 0; drop(p) }
#endif

#if EXTEND
  :: d_step { SIZE(confirms[p])>=Q ->
       printf("%c has extended, token %d\n", NAME(p), token[p]);
       assert(!overtaken[p]);                                           /* claim E: the holder's knowledge */
       assert(W!=3 || (confirms[p] & (ALL-fresh[p])) == 0);
       NEWTALLY(p); mayHeal[p] = 1 }

  /* the extend that is out is given up, for another one */
  :: d_step { confirms[p]!=0 ->
       printf("%c extends anew, token %d\n", NAME(p), token[p]);
       NEWTALLY(p) }
#endif
  od
}

init {
  byte i, j;
  atomic {
    for (i : 0 .. N-1) {
      if
      :: F[i] = 0
      :: INITF>0 -> F[i] = 1
      :: INITF>1 -> F[i] = 2
      fi;
      run instance(i)
    }
    for (i : 0 .. P-1) {
      run client(i);
      for (j : 0 .. N-1) { run script(i, j) }
    }
    i = 0; j = 0
  }
}

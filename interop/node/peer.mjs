// Why this exists: the tests of the Go library drive node-redlock through it, one JSON request a line.
//
//   node peer.mjs 4|5 HOST:PORT...
//   {"op":"lock","resource":"r","ttl":10000}   ->  {"ok":true,"value":"..."} or {"ok":false,"error":"..."}
//   {"op":"extend","ttl":10000} and {"op":"unlock"} are about the lock that was taken last.
import { createInterface } from 'node:readline';
import Redis from 'ioredis';

const [version, ...addresses] = process.argv.slice(2);
const clients = addresses.map((address) => {
  const [host, port] = address.split(':');
  return new Redis({ host, port: Number(port) });
});
const { default: Redlock } = await import(`redlock${version}`);
const redlock = new Redlock(clients, { retryCount: 0 });
redlock.on(version === '4' ? 'clientError' : 'error', () => {}); // they are in the answers

let lock;
const ops = {
  lock: async ({ resource, ttl }) => {
    lock = await (version === '4' ? redlock.lock(resource, ttl) : redlock.acquire([resource], ttl));
  },
  extend: async ({ ttl }) => {
    lock = await lock.extend(ttl);
  },
  unlock: async () => {
    await (version === '4' ? lock.unlock() : lock.release());
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line);
  let answer;
  try {
    await ops[request.op](request);
    answer = { ok: true, value: lock.value };
  } catch (error) {
    answer = { ok: false, error: String(error) };
  }
  console.log(JSON.stringify(answer));
}
process.exit(0);

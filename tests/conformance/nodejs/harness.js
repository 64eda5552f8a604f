'use strict';
// Runs cases side by side and prints one line each: `ok NAME` or `not ok NAME: why`, then the count.
// A case throws when something is not as it should be; its tags are its own.
const { isDeepStrictEqual, inspect } = require('node:util');
const { randomUUID } = require('node:crypto');
const { setTimeout: pause } = require('node:timers/promises');

const RUN = randomUUID().slice(0, 8);
const TIME_MAX_MS = 1000 * Number(process.env.TIME_MAX_S || 100);
const cases = new Map();
const clients = [];

const define = (name, action) => cases.set(name, action);
const closing = client => (clients.push(client), client);

function expect(found, wanted, what) {
  if (!isDeepStrictEqual(found, wanted)) {
    throw new Error(`${what}: ${inspect(found)}, and not ${inspect(wanted)}`);
  }
}

async function eventually(condition, withinMs, what) {
  for (const end = Date.now() + withinMs; !condition(); await pause(50)) {
    if (Date.now() > end) throw new Error(`${what}: not within ${withinMs} ms`);
  }
}

async function refused(action, what) {
  const error = await action().then(() => null, reason => reason);
  if (error === null) throw new Error(`${what} was not refused`);
  return error;
}

async function main() {
  const names = process.argv.length > 2 ? process.argv.slice(2) : [ ...cases.keys() ];
  const outcomes = new Map();
  const report = (name, fault, ms) => {
    if (outcomes.has(name)) return;
    outcomes.set(name, fault);
    const text = fault === null ? `ok ${name}` : `not ok ${name}: ${fault}`;
    console.log(`${text} (${(ms / 1000).toFixed(1)} s)`);
  };
  process.on('uncaughtException', error => console.log(`# uncaught: ${error.message}`));
  process.on('unhandledRejection', error => console.log(`# unhandled: ${error && error.message}`));
  const running = Promise.all(names.map(async name => {
    const begin = Date.now();
    const fault = await cases.get(name)().then(() => null, error => String(error.message).replace(/\s+/g, ' '));
    report(name, fault && fault.slice(0, 300), Date.now() - begin);
  }));
  await Promise.race([ running, pause(TIME_MAX_MS) ]);
  names.forEach(name => report(name, 'out of time', TIME_MAX_MS));
  await Promise.race([ pause(3000), Promise.allSettled(clients.map(client => client.shutdown())) ]);
  const failed = [ ...outcomes.values() ].filter(fault => fault !== null).length;
  console.log(`${outcomes.size - failed} passed, ${failed} failed`);
  process.exit(failed ? 1 : 0);
}

module.exports = { RUN, pause, define, closing, expect, eventually, refused, main };

'use strict';
// Sends until a line comes, and receives until its input ends; the runner stops and starts brokers meanwhile.
//
// It prints `started`, then for each send `sent TOPIC BODY` or `refused TOPIC BODY WHY`, and `received TOPIC BODY`.
// Bodies of the FIFO topic are GROUP-NUMBER.
const { setTimeout: pause } = require('node:timers/promises');
const { Producer, SimpleConsumer } = require('rocketmq-client-nodejs');
const common = require('./common');

const GROUPS = 8;
const PAUSE_MS = 200;
const TOPICS = [ process.env.TOPIC, process.env.FIFO_TOPIC ];
let silent = false;
const say = (...words) => console.log(words.map(word => String(word).replace(/\n/g, ' ')).join(' '));

async function sendAll(producer, topic, ordered) {
  for (let number = 0; !silent; number++) {
    const group = `g${number % GROUPS}`;
    const body = `${group}-${number}`;
    try {
      await producer.send({ topic, tag: 'steady', body: Buffer.from(body), ...(ordered && { messageGroup: group }) });
      say('sent', topic, body);
    } catch (error) {
      say('refused', topic, body, error.message);
    }
    await pause(PAUSE_MS);
  }
}

async function receive(topic) {
  const subscriptions = new Map([[ topic, '*' ]]);
  const consumer = new SimpleConsumer({ ...common, consumerGroup: `STEADY_${topic}`, subscriptions, awaitDuration: 5000 });
  await consumer.startup();
  say('started');
  for (;;) {
    try {
      for (const message of await consumer.receive(32, 30000)) {
        say('received', topic, message.body);
        await consumer.ack(message);
      }
    } catch (error) {
      say('unreceived', topic, error.message);
      await pause(PAUSE_MS);
    }
  }
}

async function main() {
  const producer = new Producer({ ...common, topics: TOPICS });
  await producer.startup();
  say('started');
  TOPICS.forEach((topic, place) => {
    receive(topic).catch(error => say('failed', error.message));
    sendAll(producer, topic, place === 1);
  });
}

process.on('uncaughtException', error => say('uncaught', error.message));
process.on('unhandledRejection', error => say('unhandled', error && error.message));
process.stdin.on('data', () => { silent = true; }).on('end', () => process.exit(0));
main().catch(error => say('failed', error.message));

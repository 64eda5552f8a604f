'use strict';
// Uses of the official Node.js client of RocketMQ 5, against one broker or several.
//
// A receive asks the next broker, and waits there for 5 s also while another one has messages. So with several
// brokers (BROKERS) the time to receive in is longer, and a receive of each shows that there are no more
// messages. The same messages must arrive.
const { ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');
const { FilterType, TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');
const common = require('./common');
const { RUN, pause, define, closing, expect, eventually, refused, main } = require('./harness');

const topic = kind => `TROVE_NODE_${kind}`;
const NORMAL = topic('NORMAL');
const FIFO = topic('FIFO');
const DELAY = topic('DELAY');
const TRANSACTION = topic('TRANSACTION');
const MIXED = topic('MIXED');
const BODY_SIZE_MAX = 4 << 20;
const BROKERS = Number(process.env.BROKERS || 1);
const numbers = count => [ ...Array(count).keys() ];
const texts = messages => messages.map(message => message.body.toString()).sort();
const body = value => Buffer.from(String(value));

async function startProducer(name, options = {}) {
  const producer = new Producer({ ...common, topics: [ name ], ...options });
  await producer.startup();
  return closing(producer);
}

// A simple consumer that has a position in every queue.
async function startConsumer(group, name, expression) {
  const subscriptions = new Map([[ name, expression ]]);
  const consumer = new SimpleConsumer({ ...common, consumerGroup: group, subscriptions, awaitDuration: 5000 });
  await consumer.startup();
  for (const message of await receiveEverywhere(consumer, 15000)) await consumer.ack(message);
  return closing(consumer);
}

const consumerOf = (group, name, expression) => startConsumer(`TROVE_NODE_${group}`, name, expression);

async function startPush(group, name, tag, succeeds) {
  const consume = async message => (await succeeds(message) ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE);
  const consumer = new PushConsumer({
    ...common,
    consumerGroup: `TROVE_NODE_${group}`,
    subscriptions: new Map([[ name, tag ]]),
    messageListener: { consume },
  });
  await consumer.startup();
  await pause(2000); // its first poll gives the group a position
}

// The messages of a receive of each broker, side by side.
async function receiveEverywhere(consumer, invisibleMs) {
  return (await Promise.all(numbers(BROKERS).map(() => consumer.receive(16, invisibleMs)))).flat();
}

async function take(consumer, count, withinMs, { invisibleMs = 20000, ack = true, batch = 16 } = {}) {
  const taken = [];
  for (const end = Date.now() + withinMs * BROKERS; taken.length < count && Date.now() < end;) {
    for (const message of await consumer.receive(batch, invisibleMs)) {
      if (ack) await consumer.ack(message);
      taken.push(message);
    }
  }
  return taken;
}

define('what_is_sent_is_received_once_and_gone_when_acknowledged', async () => {
  const tag = `plain${RUN}`;
  const consumer = await consumerOf('plain', NORMAL, tag);
  const producer = await startProducer(NORMAL);
  const sent = [];
  for (const i of numbers(20)) sent.push([ (await producer.send({ topic: NORMAL, tag, body: body(i) })).messageId, `${i}` ]);
  const taken = await take(consumer, 20, 20000);
  expect(taken.map(m => [ m.messageId, m.body.toString() ]).sort(), sent.sort(), 'messages');
  expect([ ...new Set(taken.map(m => m.deliveryAttempt)) ], [ 1 ], 'attempts');
  expect(taken.filter(m => m.corrupted).length, 0, 'corrupted');
  expect((await receiveEverywhere(consumer, 15000)).length, 0, 'messages left');
});

define('keys_tag_and_properties_come_back_as_they_were', async () => {
  const tag = `carried${RUN}`;
  const consumer = await consumerOf('carried', NORMAL, tag);
  const properties = new Map([[ 'country', 'Österreich' ], [ '日付', '十一月' ], [ 'json', '{"a":[1,2]}' ]]);
  const producer = await startProducer(NORMAL);
  await producer.send({ topic: NORMAL, tag, keys: [ `k1${RUN}`, 'k2' ], properties, body: body('Grüße, 世界 🌍') });
  const [ message ] = await take(consumer, 1, 15000);
  expect(message.body.toString(), 'Grüße, 世界 🌍', 'body');
  expect([ message.topic, message.tag, message.keys ], [ NORMAL, tag, [ `k1${RUN}`, 'k2' ]], 'fields');
  expect([ ...message.properties ].sort(), [ ...properties ].sort(), 'properties');
  expect(Math.abs(message.bornTimestamp.getTime() - Date.now()) < 60000, true, 'born within the last minute');
  expect(Boolean(message.bornHost), true, 'has a born host');
});

define('sends_in_flight_together_all_arrive', async () => {
  const tag = `together${RUN}`;
  const consumer = await consumerOf('together', NORMAL, tag);
  const producer = await startProducer(NORMAL);
  const receipts = await Promise.all(numbers(100).map(i => producer.send({ topic: NORMAL, tag, body: body(i) })));
  expect(new Set(receipts.map(receipt => receipt.messageId)).size, 100, 'message ids');
  expect(texts(await take(consumer, 100, 30000)), numbers(100).map(String).sort(), 'bodies');
});

// This client takes 4 MiB for a whole gRPC message, so its bodies stay below.
define('large_bodies_are_taken_and_those_over_the_limit_or_empty_refused', async () => {
  const tag = `large${RUN}`;
  const consumer = await consumerOf('large', NORMAL, tag);
  const producer = await startProducer(NORMAL);
  const large = Buffer.alloc(BODY_SIZE_MAX - (64 << 10), '0123456789abcdef');
  await producer.send({ topic: NORMAL, tag, body: large });
  const [ message ] = await take(consumer, 1, 20000);
  expect(message.body.equals(large), true, 'the body is the same');
  await refused(() => producer.send({ topic: NORMAL, tag, body: Buffer.alloc(BODY_SIZE_MAX + 1) }), 'a larger body');
  await refused(() => producer.send({ topic: NORMAL, tag, body: Buffer.alloc(0) }), 'an empty body');
});

define('topics_that_are_unknown_or_illegal_are_refused', async () => {
  const producer = await startProducer(NORMAL);
  await refused(() => producer.send({ topic: `TROVE_NONE_${RUN}`, body: body('x') }), 'an unknown topic');
  const error = await refused(() => producer.send({ topic: 'not a topic', body: body('x') }), 'an illegal topic');
  expect(error.code, 40002, 'status of an illegal topic');
});

define('a_message_of_another_kind_than_its_topic_is_refused', async () => {
  const producer = await startProducer(FIFO);
  await refused(() => producer.send({ topic: FIFO, body: body('no group') }), 'NORMAL in a FIFO topic');
  const other = await startProducer(NORMAL);
  await refused(() => other.send({ topic: NORMAL, messageGroup: 'g', body: body('x') }), 'FIFO in a NORMAL topic');
});

define('a_mixed_topic_takes_every_kind', async () => {
  const tag = `mixed${RUN}`;
  const consumer = await consumerOf('mixed', MIXED, tag);
  const producer = await startProducer(MIXED);
  await producer.send({ topic: MIXED, tag, body: body('normal') });
  await producer.send({ topic: MIXED, tag, messageGroup: 'g', body: body('ordered') });
  await producer.send({ topic: MIXED, tag, deliveryTimestamp: new Date(Date.now() + 3000), body: body('delayed') });
  expect(texts(await take(consumer, 3, 25000)), [ 'delayed', 'normal', 'ordered' ], 'bodies');
});

define('a_tag_expression_chooses', async () => {
  const tags = [ 'one', 'two', 'other' ].map(name => name + RUN);
  const consumer = await consumerOf('tags', NORMAL, `${tags[0]} || ${tags[1]}`);
  const producer = await startProducer(NORMAL);
  for (const i of numbers(15)) await producer.send({ topic: NORMAL, tag: tags[i % 3], body: body(i) });
  expect(texts(await take(consumer, 10, 15000)), numbers(15).filter(i => i % 3 < 2).map(String).sort(), 'bodies');
});

define('an_sql_condition_chooses', async () => {
  const condition = `run = '${RUN}' AND (weight BETWEEN 10 AND 20 OR size IS NULL) AND colour NOT IN ('red', 'green')`;
  const consumer = await consumerOf('sql', NORMAL, new FilterExpression(condition, FilterType.SQL));
  const producer = await startProducer(NORMAL);
  const rows = [
    [ 'weight fits', { weight: '15', size: '1', colour: 'blue' }],
    [ 'no size', { weight: '99', colour: 'blue' }],
    [ 'too heavy', { weight: '20.5', size: '1', colour: 'blue' }],
    [ 'red', { weight: '15', size: '1', colour: 'red' }],
    [ 'no colour', { weight: '15', size: '1' }],
  ];
  for (const [ text, row ] of rows) {
    await producer.send({ topic: NORMAL, body: body(text), properties: new Map(Object.entries({ run: RUN, ...row })) });
  }
  expect(texts(await take(consumer, 3, 10000)), [ 'no size', 'weight fits' ], 'bodies');
});

define('a_message_that_is_not_acknowledged_comes_again', async () => {
  const tag = `again${RUN}`;
  const consumer = await consumerOf('again', NORMAL, tag);
  const receipt = await (await startProducer(NORMAL)).send({ topic: NORMAL, tag, body: body('again') });
  const [ first ] = await take(consumer, 1, 15000, { invisibleMs: 10000, ack: false });
  const [ second ] = await take(consumer, 1, 30000);
  expect([ first.messageId, second.messageId ], [ receipt.messageId, receipt.messageId ], 'message ids');
  expect([ first.deliveryAttempt, second.deliveryAttempt ], [ 1, 2 ], 'attempts');
});

define('the_invisible_duration_can_be_changed', async () => {
  const tag = `changed${RUN}`;
  const consumer = await consumerOf('changed', NORMAL, tag);
  await (await startProducer(NORMAL)).send({ topic: NORMAL, tag, body: body('changed') });
  const [ message ] = await take(consumer, 1, 15000, { invisibleMs: 120000, ack: false });
  const handle = message.receiptHandle;
  await consumer.changeInvisibleDuration(message, 2000);
  expect(Boolean(message.receiptHandle) && message.receiptHandle !== handle, true, 'a new handle');
  const [ again ] = await take(consumer, 1, 15000);
  expect([ again.messageId, again.deliveryAttempt ], [ message.messageId, 2 ], 'redelivered');
});

define('messages_of_one_group_arrive_in_order', async () => {
  const tag = `ordered${RUN}`;
  const consumer = await consumerOf('ordered', FIFO, tag);
  const producer = await startProducer(FIFO);
  for (const i of numbers(40)) await producer.send({ topic: FIFO, tag, messageGroup: `${i % 4}${RUN}`, body: body(i) });
  const taken = await take(consumer, 40, 40000);
  for (const group of numbers(4)) {
    const mine = taken.filter(message => message.messageGroup === `${group}${RUN}`).map(m => Number(m.body));
    expect(mine, numbers(40).filter(i => i % 4 === group), `order of group ${group}`);
  }
});

define('a_delayed_message_comes_at_its_time', async () => {
  const tag = `delayed${RUN}`;
  const consumer = await consumerOf('delayed', DELAY, tag);
  const due = Date.now() + 6000;
  await (await startProducer(DELAY)).send({ topic: DELAY, tag, deliveryTimestamp: new Date(due), body: body('delayed') });
  // Side by side: one waits at the message's broker when it is due.
  const [ message ] = await Promise.any(numbers(BROKERS).map(async () => {
    const taken = await take(consumer, 1, 25000);
    return taken.length ? taken : Promise.reject(new Error('no message'));
  }));
  const lateMs = Date.now() - due;
  expect(message.body.toString(), 'delayed', 'body');
  expect(lateMs >= 0 && lateMs < 3000, true, `${lateMs} ms after its time: on time`);
});

define('a_recalled_message_never_comes', async () => {
  const tag = `recalled${RUN}`;
  const consumer = await consumerOf('recalled', DELAY, tag);
  const producer = await startProducer(DELAY);
  const deliveryTimestamp = new Date(Date.now() + 6000);
  const receipt = await producer.send({ topic: DELAY, tag, deliveryTimestamp, body: body('recalled') });
  await producer.send({ topic: DELAY, tag, deliveryTimestamp, body: body('kept') });
  expect((await producer.recallMessage(DELAY, receipt.recallHandle)).messageId, receipt.messageId, 'recalled');
  expect(texts(await take(consumer, 2, 14000)), [ 'kept' ], 'bodies');
});

define('transactions_are_seen_after_their_commit_only', async () => {
  const tag = `transaction${RUN}`;
  const asked = [];
  const consumer = await consumerOf('transaction', TRANSACTION, tag);
  const check = async message => {
    asked.push(message.body.toString());
    return asked.at(-1) === 'asked, no' ? TransactionResolution.ROLLBACK : TransactionResolution.COMMIT;
  };
  const producer = await startProducer(TRANSACTION, { checker: { check } });
  const send = (text, transaction) => producer.send({ topic: TRANSACTION, tag, body: body(text) }, transaction);
  const committed = producer.beginTransaction();
  await send('committed', committed);
  const rolledBack = producer.beginTransaction();
  await send('rolled back', rolledBack);
  expect(texts(await receiveEverywhere(consumer, 20000)), [], 'seen before the commit');
  await committed.commit();
  await rolledBack.rollback();
  await send('asked, yes', producer.beginTransaction());
  await send('asked, no', producer.beginTransaction());
  expect(texts(await take(consumer, 2, 60000)), [ 'asked, yes', 'committed' ], 'seen');
  await eventually(() => asked.includes('asked, no'), 40000, 'asked about the last one');
  expect(texts(await receiveEverywhere(consumer, 20000)), [], 'seen after all');
  expect(asked.filter(text => !text.startsWith('asked')), [], 'asked about settled ones');
});

define('a_push_consumer_gets_every_message_once', async () => {
  const tag = `pushed${RUN}`;
  const seen = [];
  await startPush('pushed', NORMAL, tag, message => seen.push(message.body.toString()));
  const producer = await startProducer(NORMAL);
  await Promise.all(numbers(200).map(i => producer.send({ topic: NORMAL, tag, body: body(i) })));
  await eventually(() => new Set(seen).size === 200, 30000, '200 messages');
  expect([ ...seen ].sort(), numbers(200).map(String).sort(), 'each once');
});

define('what_a_push_consumer_fails_at_is_tried_again_later', async () => {
  const tag = `retried${RUN}`;
  const attempts = [];
  await startPush('retrying', NORMAL, tag, message => attempts.push(message.deliveryAttempt) >= 3);
  await (await startProducer(NORMAL)).send({ topic: NORMAL, tag, body: body('retried') });
  await eventually(() => attempts.length >= 3, 40000, 'three attempts');
  await pause(3000);
  expect(attempts, [ 1, 2, 3 ], 'attempts');
});

define('what_fails_for_good_is_found_in_the_dead_letter_topic', async () => {
  const tag = `dead${RUN}`;
  const attempts = [];
  await startPush('dying', NORMAL, tag, message => attempts.push(message.deliveryAttempt) < 0);
  await (await startProducer(NORMAL)).send({ topic: NORMAL, tag, keys: [ tag ], body: body('dead') });
  await eventually(() => attempts.length >= 2, 30000, 'two attempts');
  const consumer = new SimpleConsumer({
    ...common,
    consumerGroup: `TROVE_NODE_reader${RUN}`,
    subscriptions: new Map([[ '%DLQ%TROVE_NODE_dying', tag ]]),
    awaitDuration: 5000,
  });
  let found = [];
  let started = false;
  for (const end = Date.now() + 40000; !found.length && Date.now() < end;) {
    try {
      if (!started) await consumer.startup();
      started = true;
      found = await take(consumer, 1, 5000);
    } catch {
      await pause(500); // the topic is made by the first dead letter
    }
  }
  closing(consumer);
  expect(found.map(message => [ message.body.toString(), message.keys ]), [[ 'dead', [ tag ]]], 'dead letters');
  expect(attempts, [ 1, 2 ], 'attempts');
});

define('a_push_consumer_of_an_orderly_group_keeps_the_order', async () => {
  const tag = `pushedordered${RUN}`;
  const seen = [];
  await startPush('pushed_ordered', FIFO, tag, async message => {
    await pause(3);
    return seen.push([ message.messageGroup, Number(message.body) ]);
  });
  const producer = await startProducer(FIFO);
  for (const i of numbers(30)) await producer.send({ topic: FIFO, tag, messageGroup: `${i % 3}${RUN}`, body: body(i) });
  await eventually(() => seen.length >= 30, 45000, '30 messages');
  for (const group of numbers(3)) {
    const mine = seen.filter(([ name ]) => name === `${group}${RUN}`).map(([ , number ]) => number);
    expect(mine, numbers(30).filter(i => i % 3 === group), `order of group ${group}`);
  }
});

main();

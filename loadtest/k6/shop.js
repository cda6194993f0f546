// Shared by rush.js, steady.js, lifecycle.js and verify.js.
import http from 'k6/http';
import { check, sleep } from 'k6';
import exec from 'k6/execution';
import { Counter } from 'k6/metrics';

// Orders are sent to url. Stock is created and audited at adminURL, since the gateway
// denies both.
export const url = __ENV.BASE_URL || 'http://127.0.0.1:8080';
export const adminURL = __ENV.ADMIN_URL || url;
const otherURL = __ENV.OTHER_URL || url; // of another instance, for every second repeat

// number reads a positive number from the environment.
export function number(name, otherwise) {
  const value = Number(__ENV[name] || otherwise);
  if (!Number.isFinite(value) || value <= 0) {
    throw new Error(`${name}: ${__ENV[name]} is not a number above 0`);
  }
  return value;
}

const keys = (__ENV.KEYS || 'on').toLowerCase();
if (keys !== 'on' && keys !== 'off') {
  throw new Error(`KEYS: ${__ENV.KEYS} is neither on nor off`);
}
const again = Number(__ENV.AGAIN || 0);
if (!Number.isInteger(again) || again < 0) {
  throw new Error(`AGAIN: ${__ENV.AGAIN} is not a whole number of at least 0`);
}

export const accepted = new Counter('orders_accepted');
export const queued = new Counter('orders_queued'); // of the accepted ones
export const soldOut = new Counter('orders_sold_out');
export const byGateway = new Counter('orders_sold_out_by_gateway');
export const failed = new Counter('orders_failed'); // neither accepted nor refused
export const replayed = new Counter('orders_replayed');

// By default k6 counts every 409 as a failed request, but "sold out" is a correct answer.
http.setResponseCallback(http.expectedStatuses(200, 201, 202, 409));

// isAccepted reports whether the answer accepts an order: 201, or 202 for an order that is
// queued (--strategy async).
export const isAccepted = (answer) => answer.status === 201 || answer.status === 202;

const maxQueued = 30; // seconds that an order may be queued

// count counts an accepted order.
export function count(answer) {
  accepted.add(1);
  queued.add(answer.status === 202 ? 1 : 0);
}

// leaveQueue waits until a queued order is committed or refused, and returns it.
export function leaveQueue(order) {
  let now = order;
  for (let waited = 0; now.status === 'queued' && waited < maxQueued; waited += 0.1) {
    sleep(0.1);
    const answer = http.get(`${url}/orders/${order.id}`, { tags: { name: 'GET /orders/{id}' } });
    now = answer.status === 200 ? answer.json() : now;
  }
  return now;
}

export const json = { 'Content-Type': 'application/json' };

// adminHeaders returns the headers of a request that only administrators may send.
export function adminHeaders() {
  const headers = Object.assign({}, json);
  if (__ENV.ADMIN_TOKEN) {
    headers.Authorization = `Bearer ${__ENV.ADMIN_TOKEN}`;
  }
  return headers;
}

// createStock creates the SKU and returns the data of the iterations. The run is part of
// every buyer and key, so that no two runs share any. fields adds to or replaces the
// fields of the SKU.
export function createStock(sku, units, fields = {}) {
  const body = JSON.stringify(Object.assign({ kind: 'product', total: units }, fields));
  const answer = http.put(`${adminURL}/stock/${sku}`, body, { headers: adminHeaders() });
  if (answer.status !== 201) {
    // The counts of an existing SKU would include earlier orders.
    throw new Error(`PUT /stock/${sku}: ${answer.status} ${answer.body}: SKU must name one that does not exist`);
  }
  return { sku, run: Date.now().toString(36) };
}

// plan says how the n-th order is sent. Half of the orders have a key, and half of those
// are sent a second time: together with the first time, at once after the answer, or later.
function plan(n, run) {
  if (keys === 'off' || n % 2 !== 0) {
    return { key: '' };
  }
  const repeat = { 0: 'together', 2: 'at once', 4: 'later', 6: 'later' }[n % 16] || '';
  return { key: `${run}-${n}`, repeat, again: n % 32 < 16 ? url : otherURL };
}

const due = []; // orders of this VU that it repeats later

const isReplay = (answer) => answer.headers['Idempotent-Replayed'] === 'true';

// repeats checks that an answer repeats the first one to its key, byte for byte.
function repeats(first, second) {
  replayed.add(1);
  check(second, {
    'the same answer to the same key': (a) => a.status === first.status && a.body === first.body && isReplay(a),
  });
}

// isSoldOut reports whether the answer refuses an order for lack of units.
export const isSoldOut = (answer) => answer.status === 409 && answer.json('type') === '/problems/sold-out';

// place sends the n-th order, also a second time if its plan says so. It returns the
// answer, and counts an order without one. refused reports whether an answer is one of
// the refusals that are correct.
export function place(n, run, body, refused) {
  while (due.length > 1) {
    const { first, request } = due.shift();
    repeats(first, http.post(...request));
  }
  const { key, repeat, again } = plan(n, run);
  const headers = Object.assign({}, json);
  if (key) {
    headers['Idempotency-Key'] = key;
  }
  const params = { headers, tags: { name: 'POST /orders' } };
  const request = [`${again}/orders`, body, params];
  let answer;
  if (repeat === 'together') {
    let twin;
    [answer, twin] = http.batch([
      ['POST', `${url}/orders`, body, params],
      ['POST', ...request],
    ]);
    // The first answer is the one that accepts the order, or else the one that refuses it:
    // the other may be that the order is in progress.
    const isTwinFirst = isAccepted(answer) ? isAccepted(twin) && isReplay(answer) : isAccepted(twin) || refused(twin);
    if (isTwinFirst) {
      [answer, twin] = [twin, answer];
    }
    if (isAccepted(answer) && isAccepted(twin)) {
      repeats(answer, twin);
    }
    check(twin, {
      'a twin is accepted, refused or in progress': (a) =>
        isAccepted(a) || refused(a) || (a.status === 409 && a.json('type') === '/problems/in-progress'),
    });
  } else {
    answer = http.post(`${url}/orders`, body, params);
  }
  check(answer, { 'accepted or refused': (a) => isAccepted(a) || refused(a) });
  if (!isAccepted(answer)) {
    failed.add(refused(answer) ? 0 : 1);
  } else if (repeat === 'at once') {
    repeats(answer, http.post(...request));
  } else if (repeat === 'later') {
    due.push({ first: answer, request });
  }
  return answer;
}

// One in followEvery queued orders is followed to its end.
const followEvery = 20;

// order sends one buyer's order for one unit. After the answer "sold out", the buyer
// repeats the request up to AGAIN times. Some orders that are queued are followed to their
// end.
export function order({ sku, run }) {
  const n = exec.scenario.iterationInTest;
  const body = JSON.stringify({ buyer_id: `k6-${run}-${n}`, lines: [{ sku, quantity: 1 }] });
  let answer;
  for (let sent = 0; sent <= again; sent++) {
    answer = place(n, run, body, isSoldOut);
    if (answer.status !== 409) {
      break;
    }
    soldOut.add(1);
    // The gateway sets Proxy-Status in the answers that it gives itself.
    byGateway.add((answer.headers['Proxy-Status'] || '').startsWith('holdfast-gateway') ? 1 : 0);
  }
  if (!isAccepted(answer)) {
    return;
  }
  count(answer);
  if (answer.status === 202 && n % followEvery === 0) {
    check(leaveQueue(answer.json()), { 'a queued order is committed': (o) => o.status === 'pending' });
  }
}

// broken names the checks that failed and the thresholds that were not kept.
export function broken(data) {
  const lines = [];
  for (const { name, passes, fails } of Object.values(data.root_group.checks)) {
    if (fails > 0) {
      lines.push(`BROKEN check "${name}": not so for ${fails} of ${passes + fails}`);
    }
  }
  for (const [name, metric] of Object.entries(data.metrics)) {
    for (const [condition, threshold] of Object.entries(metric.thresholds || {})) {
      lines.push(`${threshold.ok ? 'kept  ' : 'BROKEN'} ${name}: ${condition}`);
    }
  }
  return lines;
}

// summary prints the main figures and writes all of them to the file SUMMARY.
export function summary(data) {
  const total = (name) => (data.metrics[name] ? data.metrics[name].values.count : 0);
  const lines = [
    `accepted ${total('orders_accepted')} (queued ${total('orders_queued')}), sold out ${total('orders_sold_out')}, ` +
      `failed ${total('orders_failed')}, ` +
      `replayed ${total('orders_replayed')}, dropped ${total('dropped_iterations')}`,
    `sold out by the gateway ${total('orders_sold_out_by_gateway')}, ` +
      `by the service ${total('orders_sold_out') - total('orders_sold_out_by_gateway')}`,
  ];
  const took = data.metrics.http_req_duration;
  if (took) {
    lines.push(`p50 ${took.values.med.toFixed(1)} ms, p99 ${took.values['p(99)'].toFixed(1)} ms`);
  }
  const out = { stdout: lines.concat(broken(data)).join('\n') + '\n' };
  if (__ENV.SUMMARY) {
    out[__ENV.SUMMARY] = JSON.stringify(data, null, 2);
  }
  return out;
}

export const trendStats = ['avg', 'med', 'p(90)', 'p(99)', 'max'];

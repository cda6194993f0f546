// Buyers order, and then pay, cancel, or let their orders expire. The service must run
// with a short --payment-window. Each buyer waits until the order has come to its end, and
// checks that it agrees with the answers. Some orders are refunded.
//
// Afterwards, verify.js with SKU=<SKU>,<SKU>-coupon, PAYMENTS=<SKU>- and LOAD=<file of
// SUMMARY> audits both SKUs, and compares held_units and refunds_due with this script's.
//
//   SKU, STOCK (500), RATE (50 buyers a second), SECONDS (10), P99 (500 ms), ADMIN_TOKEN,
//   WINDOW (seconds of --payment-window; then expires_at is checked), OTHER_URL (of another
//   instance, which gets every second repeat)
import http from 'k6/http';
import { check, sleep } from 'k6';
import exec from 'k6/execution';
import { Counter } from 'k6/metrics';
import { adminHeaders, adminURL, count, createStock, isAccepted, isSoldOut, json, leaveQueue, number, place, soldOut, summary, trendStats, url } from './shop.js';

const sku = __ENV.SKU || `k6-lifecycle-${Date.now()}`;
const coupon = `${sku}-coupon`;
const stock = number('STOCK', 500);
const rate = number('RATE', 50);
const seconds = number('SECONDS', 10);
const couponLimit = 1;
const maxWait = 120; // seconds that the end of an order may take
const payWindow = __ENV.WINDOW ? number('WINDOW', 0) : 0; // 0: not known

const ends = {
  paid: new Counter('orders_paid'),
  cancelled: new Counter('orders_cancelled'),
  expired: new Counter('orders_expired'),
  refunded: new Counter('orders_refunded'),
};
const held = new Counter('held_units'); // units of the product that orders hold at the end
const refundsDue = new Counter('refunds_due');

export const options = {
  summaryTrendStats: trendStats,
  scenarios: {
    lifecycle: {
      executor: 'constant-arrival-rate',
      rate,
      timeUnit: '1s',
      duration: `${seconds}s`,
      preAllocatedVUs: rate * 2,
      maxVUs: Math.max(50, rate * maxWait), // buyers wait for the end of their orders
      gracefulStop: `${maxWait}s`,
    },
  },
  thresholds: {
    checks: ['rate==1'],
    http_req_failed: ['rate<0.001'],
    http_req_duration: [`p(99)<${number('P99', 500)}`],
    orders_paid: ['count>0'],
    orders_cancelled: ['count>0'],
    orders_expired: ['count>0'],
    orders_refunded: ['count>0'],
    refunds_due: ['count>0'],
  },
};

export function setup() {
  createStock(coupon, stock, { kind: 'coupon', buyer_limit: couponLimit });
  return createStock(sku, stock);
}

// newLife returns an order with the IDs of its two possible payments and with the answers
// to the calls that changed it.
const newLife = (order, n) => ({ order, one: `${sku}-${n}-1`, two: `${sku}-${n}-2`, answers: [] });

const pay = (payment) => ({ action: 'pay', body: { payment_id: payment } });
const cancel = { action: 'cancel', body: {} };
const refund = { action: 'refund', body: { restock: true } };

// send sends the calls at the same time, and each of them again until it gets a final
// answer.
function send(life, ...calls) {
  const requests = calls.map(({ action, body }) => ({
    method: 'POST',
    url: `${action === 'refund' ? adminURL : url}/orders/${life.order.id}/${action}`,
    body: JSON.stringify(body),
    params: { headers: action === 'refund' ? adminHeaders() : json, tags: { name: `POST /orders/{id}/${action}` } },
  }));
  http.batch(requests).forEach((answer, i) => {
    for (let tries = 1; (answer.status === 0 || answer.status >= 500) && tries < 20; tries++) {
      sleep(0.1);
      answer = http.batch([requests[i]])[0];
    }
    life.answers.push({ call: calls[i], status: answer.status, problem: answer.status === 200 ? '' : answer.json('type') });
  });
}

// plans are what a buyer may do with an order.
const plans = [
  () => {}, // it expires
  (life) => send(life, pay(life.one)),
  (life) => send(life, pay(life.one), pay(life.one)),
  (life) => send(life, pay(life.one), pay(life.two)),
  (life) => send(life, pay(life.one), cancel),
  (life) => {
    send(life, cancel);
    send(life, pay(life.one));
  },
  (life) => {
    send(life, pay(life.one));
    send(life, refund);
    send(life, pay(life.one));
  },
  (life) => {
    const wait = (Date.parse(life.order.expires_at) - Date.now()) / 1000;
    sleep(Math.min(Math.max(0, wait), payWindow || maxWait) + 0.1); // expires_at may be wrong
    send(life, pay(life.one), pay(life.two)); // late
  },
];

// atItsEnd waits until the order is no longer pending, and returns it.
function atItsEnd(order) {
  let now = order;
  for (let waited = 0; now.status === 'pending' && waited < maxWait; waited += 0.2) {
    const answer = http.get(`${url}/orders/${order.id}`, { tags: { name: 'GET /orders/{id}' } });
    now = answer.status === 200 ? answer.json() : now;
    if (now.status === 'pending') {
      sleep(0.2);
    }
  }
  return now;
}

// agrees reports whether the order at its end agrees with the answer to a call.
function agrees(order, { call, status, problem }) {
  switch (call.action) {
    case 'pay':
      return status === 200
        ? order.payment_id === call.body.payment_id
        : problem === '/problems/refund-due' && order.payment_id !== call.body.payment_id;
    case 'cancel':
      return status === 200 ? order.status === 'cancelled' : problem === '/problems/wrong-status' && order.status !== 'cancelled';
    default:
      return status === 200 && order.status === 'refunded';
  }
}

// checkEnd compares the order at its end with the answers, and counts it.
function checkEnd(life, order) {
  check(order, {
    'the order has come to its end': (o) => o.status in ends,
    'the history ends with the status': (o) => o.history && o.history[o.history.length - 1].status === o.status,
    'the order agrees with every answer': (o) => life.answers.every((answer) => agrees(o, answer)),
  });
  if (order.status in ends) {
    ends[order.status].add(1);
  }
  held.add(order.status === 'paid' ? 1 : 0);
  const payments = new Set(life.answers.filter((a) => a.call.action === 'pay').map((a) => a.call.body.payment_id));
  if (order.status === 'paid') {
    payments.delete(order.payment_id);
  }
  refundsDue.add(payments.size);
}

export default function ({ run }) {
  const n = exec.scenario.iterationInTest;
  const lines = [{ sku, quantity: 1 }];
  if (n % 3 === 0) {
    lines.push({ sku: coupon, quantity: 1 });
  }
  const body = JSON.stringify({ buyer_id: `k6-${run}-${n % rate}`, lines });
  const isAtLimit = (a) => a.status === 409 && a.json('type') === '/problems/buyer-limit';
  const answer = place(n, run, body, (a) => isSoldOut(a) || isAtLimit(a));
  if (!isAccepted(answer)) {
    soldOut.add(isSoldOut(answer) ? 1 : 0);
    return;
  }
  count(answer);
  if (payWindow && answer.status === 201) {
    check(answer.json(), {
      'expires_at is WINDOW after created_at': (o) =>
        Math.abs(Date.parse(o.expires_at) - Date.parse(o.created_at) - payWindow * 1000) <= 1, // Date has milliseconds
    });
  }
  const order = leaveQueue(answer.json());
  if (order.status === 'refused') {
    return; // a queued order whose buyer has reached the limit
  }
  const life = newLife(order, n);
  plans[n % plans.length](life);
  checkEnd(life, atItsEnd(life.order));
}

export const handleSummary = summary;

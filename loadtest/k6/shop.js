// What rush.js, steady.js and verify.js have in common.
import http from 'k6/http';
import { check } from 'k6';
import exec from 'k6/execution';
import { Counter } from 'k6/metrics';

export const url = __ENV.BASE_URL || 'http://127.0.0.1:8080';

// number reads a setting from the environment.
export function number(name, otherwise) {
  const value = Number(__ENV[name] || otherwise);
  if (!Number.isFinite(value) || value <= 0) {
    throw new Error(`${name}: ${__ENV[name]} is not a number above 0`);
  }
  return value;
}

export const accepted = new Counter('orders_accepted');
export const soldOut = new Counter('orders_sold_out');
export const replayed = new Counter('orders_replayed');

// Sold out is a correct answer: k6 would count every 409 as a failed request.
http.setResponseCallback(http.expectedStatuses(200, 201, 409));

const json = { 'Content-Type': 'application/json' };

// lay puts the units in and returns what the iterations need to know. The run is
// part of each buyer and each key, so that no run repeats another's.
export function lay(sku, units) {
  const headers = Object.assign({}, json);
  if (__ENV.ADMIN_TOKEN) {
    headers.Authorization = `Bearer ${__ENV.ADMIN_TOKEN}`;
  }
  const answer = http.put(`${url}/stock/${sku}`, JSON.stringify({ kind: 'product', total: units }), { headers });
  if (answer.status !== 201) {
    // More of what was there already would let the counts prove nothing.
    throw new Error(`PUT /stock/${sku}: ${answer.status} ${answer.body}: name a SKU that is not there yet`);
  }
  return { sku, run: Date.now().toString(36) };
}

const everyReplay = 20;

// order is one buyer's order for one unit. Every so often the answer is lost, as
// it were, and the same key asks again.
export function order({ sku, run }) {
  const n = exec.scenario.iterationInTest;
  const params = {
    headers: Object.assign({ 'Idempotency-Key': `${run}-${n}` }, json),
    tags: { name: 'POST /orders' },
  };
  const body = JSON.stringify({ buyer_id: `k6-${run}-${n}`, lines: [{ sku, quantity: 1 }] });
  const answer = http.post(`${url}/orders`, body, params);
  check(answer, {
    'accepted or sold out': (a) =>
      a.status === 201 || (a.status === 409 && a.json('type') === '/problems/sold-out'),
  });
  if (answer.status === 409) {
    soldOut.add(1);
  }
  if (answer.status !== 201) {
    return;
  }
  accepted.add(1);
  if (n % everyReplay === 0) {
    const again = http.post(`${url}/orders`, body, params);
    replayed.add(1);
    check(again, {
      'the same key, the same answer': (a) =>
        a.status === 201 && a.body === answer.body && a.headers['Idempotent-Replayed'] === 'true',
    });
  }
}

// summary prints what matters and writes everything into the file SUMMARY.
export function summary(data) {
  const count = (name) => (data.metrics[name] ? data.metrics[name].values.count : 0);
  const lines = [
    `accepted ${count('orders_accepted')}, sold out ${count('orders_sold_out')}, replayed ${count('orders_replayed')}, ` +
      `never sent ${count('dropped_iterations')}`,
  ];
  const took = data.metrics.http_req_duration;
  if (took) {
    lines.push(`p50 ${took.values.med.toFixed(1)} ms, p99 ${took.values['p(99)'].toFixed(1)} ms`);
  }
  for (const [name, metric] of Object.entries(data.metrics)) {
    for (const [condition, threshold] of Object.entries(metric.thresholds || {})) {
      lines.push(`${threshold.ok ? 'held  ' : 'BROKEN'} ${name}: ${condition}`);
    }
  }
  const out = { stdout: lines.join('\n') + '\n' };
  if (__ENV.SUMMARY) {
    out[__ENV.SUMMARY] = JSON.stringify(data, null, 2);
  }
  return out;
}

export const trendStats = ['avg', 'med', 'p(90)', 'p(99)', 'max'];

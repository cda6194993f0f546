// Waits until nothing is in flight and returned units have reached the gate, and reads
// the service's own audit. Thresholds on
// answers cannot detect overselling, because a 201 does not show whether the order is
// stored, or the unit is sold twice. Ends with status 99 if a SKU is oversold or its
// counts disagree.
//
// With LOAD, the absolute path of the load's SUMMARY, it also compares the units sold of
// the first SKU with the orders that the load counted: no more may be sold than were
// accepted, whatever was repeated under a key, and no less. An order that failed may have
// been sold. After lifecycle.js, it compares the units held and, with PAYMENTS, the
// payments due.
//
//   SKU (one or several, separated by commas), LOAD, PAYMENTS (counts the payments that are
//   due back to the buyer and whose IDs begin with this), ADMIN_TOKEN
import http from 'k6/http';
import { sleep } from 'k6';
import { Counter } from 'k6/metrics';
import { adminHeaders, adminURL, broken } from './shop.js';

const skus = (__ENV.SKU || '').split(',').filter((sku) => sku !== '');
if (skus.length === 0) {
  throw new Error('SKU: name at least one');
}

const audited = new Counter('audited');
const oversold = new Counter('oversold_units');
const drift = new Counter('drift_units');
const sold = new Counter('sold_units');
const refundsDue = new Counter('refunds_due');
const unexplained = new Counter('unexplained_units'); // sold and not accepted, or accepted and not sold
const unexplainedRefunds = new Counter('unexplained_refunds');

const load = __ENV.LOAD ? JSON.parse(open(__ENV.LOAD)).metrics : null;

// counted returns a counter of the load, null if it has none.
const counted = (name) => (load && load[name] ? load[name].values.count : null);

export const options = {
  vus: 1,
  iterations: 1,
  thresholds: {
    audited: [`count==${skus.length}`], // a SKU without an audit fails too
    oversold_units: ['count==0'],
    drift_units: ['count==0'],
    unexplained_units: ['count==0'],
    unexplained_refunds: ['count==0'],
  },
};

const maxWait = 30; // seconds until nothing is in flight
const maxDelivery = 5; // seconds until returned units have reached the gate

// settled reports whether the audit need not be read again.
function settled(audit, waited) {
  return audit && !audit.gate_in_flight && (audit.oversold > 0 || audit.drift === 0 || waited >= maxDelivery);
}

// explain compares the units sold with the load's counts.
function explain(units) {
  const held = counted('held_units');
  const least = held === null ? counted('orders_accepted') || 0 : held;
  const most = least + (counted('orders_failed') || 0);
  if (units < least || units > most) {
    console.error(`${skus[0]}: ${units} units are sold, but ${least} by the answers of the load, and at most ${most}`);
  }
  unexplained.add(Math.max(0, least - units, units - most));
}

// countRefundsDue counts the payments that are due back and whose IDs begin with prefix.
function countRefundsDue(prefix) {
  let all = 0;
  for (let after = prefix; after !== null; ) {
    const query = `status=refund-due&limit=1000&after=${encodeURIComponent(after)}`;
    const page = http.get(`${adminURL}/payments?${query}`, { headers: adminHeaders() }).json();
    const ours = page.payments.filter((payment) => payment.id.startsWith(prefix));
    all += ours.length;
    after = ours.length === page.payments.length ? page.next : null; // sorted by ID
  }
  refundsDue.add(all);
  if (counted('refunds_due') !== null) {
    unexplainedRefunds.add(Math.abs(all - counted('refunds_due')));
  }
}

export default function () {
  for (const sku of skus) {
    let audit = null;
    for (let waited = 0; waited < maxWait; waited += 0.1) {
      const answer = http.get(`${adminURL}/stock/${sku}/audit`);
      audit = answer.status === 200 ? answer.json() : null;
      if (settled(audit, waited)) {
        break;
      }
      sleep(0.1);
    }
    if (!audit) {
      console.error(`${sku}: no audit`);
      continue;
    }
    console.log(`${sku}: ${JSON.stringify(audit)}`);
    audited.add(1);
    sold.add(audit.sold);
    if (load && sku === skus[0]) {
      explain(audit.sold);
    }
    oversold.add(audit.oversold);
    drift.add(Math.abs(audit.drift)); // so that opposite drifts of two SKUs do not cancel out
  }
  if (__ENV.PAYMENTS) {
    countRefundsDue(__ENV.PAYMENTS);
  }
}

export function handleSummary(data) {
  const lines = [];
  for (const name of ['audited', 'sold_units', 'oversold_units', 'drift_units', 'refunds_due']) {
    const metric = data.metrics[name];
    lines.push(`${name} ${metric ? metric.values.count : 'none'}`);
  }
  if (!load) {
    lines.push('LOAD is not set: what was sold is not compared with what was accepted');
  }
  const out = { stdout: lines.concat(broken(data)).join('\n') + '\n' };
  if (__ENV.SUMMARY) {
    out[__ENV.SUMMARY] = JSON.stringify(data, null, 2);
  }
  return out;
}

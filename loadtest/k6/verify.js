// Waits until nothing is in flight and returned units have reached the gate, and reads
// the service's own audit. Thresholds on
// answers cannot detect overselling, because a 201 does not show whether the order is
// stored, or the unit is sold twice. Ends with status 99 if a SKU is oversold or its
// counts disagree.
//
//   SKU (one or several, separated by commas), PAYMENTS (counts the payments that are due
//   back to the buyer and whose IDs begin with this), ADMIN_TOKEN
import http from 'k6/http';
import { sleep } from 'k6';
import { Counter } from 'k6/metrics';
import { adminHeaders, adminURL } from './shop.js';

const skus = (__ENV.SKU || '').split(',').filter((sku) => sku !== '');
if (skus.length === 0) {
  throw new Error('SKU: name at least one');
}

const audited = new Counter('audited');
const oversold = new Counter('oversold_units');
const drift = new Counter('drift_units');
const sold = new Counter('sold_units');
const refundsDue = new Counter('refunds_due');

export const options = {
  vus: 1,
  iterations: 1,
  thresholds: {
    audited: [`count==${skus.length}`], // a SKU without an audit fails too
    oversold_units: ['count==0'],
    drift_units: ['count==0'],
  },
};

const maxWait = 30; // seconds until nothing is in flight
const maxDelivery = 5; // seconds until returned units have reached the gate

// settled reports whether the audit need not be read again.
function settled(audit, waited) {
  return audit && !audit.gate_in_flight && (audit.oversold > 0 || audit.drift === 0 || waited >= maxDelivery);
}

// countRefundsDue counts the payments that are due back and whose IDs begin with prefix.
function countRefundsDue(prefix) {
  for (let after = prefix; after !== null; ) {
    const query = `status=refund-due&limit=1000&after=${encodeURIComponent(after)}`;
    const page = http.get(`${adminURL}/payments?${query}`, { headers: adminHeaders() }).json();
    const ours = page.payments.filter((payment) => payment.id.startsWith(prefix));
    refundsDue.add(ours.length);
    after = ours.length === page.payments.length ? page.next : null; // sorted by ID
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
  const out = { stdout: lines.join('\n') + '\n' };
  if (__ENV.SUMMARY) {
    out[__ENV.SUMMARY] = JSON.stringify(data, null, 2);
  }
  return out;
}

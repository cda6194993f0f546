// Waits until nothing is in flight, and reads the service's own audit. Thresholds on
// answers cannot detect overselling, because a 201 does not show whether the order is
// stored, or the unit is sold twice. Ends with status 99 if a SKU is oversold or its
// counts disagree.
//
//   SKU (one or several, separated by commas)
import http from 'k6/http';
import { sleep } from 'k6';
import { Counter } from 'k6/metrics';
import { adminURL } from './shop.js';

const skus = (__ENV.SKU || '').split(',').filter((sku) => sku !== '');
if (skus.length === 0) {
  throw new Error('SKU: name at least one');
}

const audited = new Counter('audited');
const oversold = new Counter('oversold_units');
const drift = new Counter('drift_units');
const sold = new Counter('sold_units');

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

export default function () {
  for (const sku of skus) {
    let audit = null;
    for (let waited = 0; waited < maxWait; waited += 0.1) {
      const answer = http.get(`${adminURL}/stock/${sku}/audit`);
      audit = answer.status === 200 ? answer.json() : null;
      if (audit && !audit.gate_in_flight) {
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
}

export function handleSummary(data) {
  const lines = [];
  for (const name of ['audited', 'sold_units', 'oversold_units', 'drift_units']) {
    const metric = data.metrics[name];
    lines.push(`${name} ${metric ? metric.values.count : 'none'}`);
  }
  const out = { stdout: lines.join('\n') + '\n' };
  if (__ENV.SUMMARY) {
    out[__ENV.SUMMARY] = JSON.stringify(data, null, 2);
  }
  return out;
}

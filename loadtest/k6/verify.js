// Asks the service's audit what was sold, when nothing is in flight any more.
// Thresholds on answers cannot see overselling: an order may be lost, or sold
// twice, behind a 201. Exit status 99: it was.
//
//   SKU (one or several, with commas between)
import http from 'k6/http';
import { sleep } from 'k6';
import { Counter } from 'k6/metrics';
import { adminURL } from './shop.js';

const skus = (__ENV.SKU || '').split(',').filter((sku) => sku !== '');
if (skus.length === 0) {
  throw new Error('SKU: name what was sold');
}

const audited = new Counter('audited');
const oversold = new Counter('oversold_units');
const drift = new Counter('drift_units');
const sold = new Counter('sold_units');

export const options = {
  vus: 1,
  iterations: 1,
  thresholds: {
    audited: [`count==${skus.length}`], // what was not asked is not right
    oversold_units: ['count==0'],
    drift_units: ['count==0'],
  },
};

const patience = 30; // seconds until nothing is in flight

export default function () {
  for (const sku of skus) {
    let audit = null;
    for (let waited = 0; waited < patience; waited += 0.1) {
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
    drift.add(Math.abs(audit.drift)); // too many here must not make up for too few there
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

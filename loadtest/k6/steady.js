// Orders arrive at a constant rate, and there is enough for all of them: how long
// do buyers wait at that rate?
//
//   SKU, RATE (500 a second), SECONDS (30), P99 (200 ms), LATE (0.01 of the arrivals never sent)
import { lay, number, order, summary, trendStats } from './shop.js';

const sku = __ENV.SKU || `k6-steady-${Date.now()}`;
const rate = number('RATE', 500);
const seconds = number('SECONDS', 30);
const most = Math.max(50, rate);

export const options = {
  summaryTrendStats: trendStats,
  scenarios: {
    steady: {
      executor: 'constant-arrival-rate',
      rate,
      timeUnit: '1s',
      duration: `${seconds}s`,
      preAllocatedVUs: Math.min(most, 100),
      maxVUs: most,
      gracefulStop: '30s',
    },
  },
  thresholds: {
    checks: ['rate==1'],
    http_req_failed: ['rate<0.001'],
    http_req_duration: [`p(99)<${number('P99', 200)}`],
    // An arrival that was never sent is a buyer whose wait nobody measured.
    dropped_iterations: [`count<=${Math.ceil(rate * seconds * number('LATE', 0.01))}`],
    orders_sold_out: ['count==0'],
  },
};

export const setup = () => lay(sku, 2 * rate * seconds);
export default order;
export const handleSummary = summary;

// Orders arrive at a constant rate, with more stock than orders. Measures how long
// buyers wait at that rate.
//
//   SKU, RATE (500 a second), SECONDS (30), P99 (200 ms), LATE (0.01: the share of
//   arrivals that may be dropped), OTHER_URL (of another instance, which gets every second
//   repeat)
import { createStock, number, order, summary, trendStats } from './shop.js';

const sku = __ENV.SKU || `k6-steady-${Date.now()}`;
const rate = number('RATE', 500);
const seconds = number('SECONDS', 30);
const maxVUs = Math.max(50, rate);

export const options = {
  summaryTrendStats: trendStats,
  scenarios: {
    steady: {
      executor: 'constant-arrival-rate',
      rate,
      timeUnit: '1s',
      duration: `${seconds}s`,
      preAllocatedVUs: Math.min(maxVUs, 100),
      maxVUs,
      gracefulStop: '30s',
    },
  },
  thresholds: {
    checks: ['rate==1'],
    http_req_failed: ['rate<0.001'],
    http_req_duration: [`p(99)<${number('P99', 200)}`],
    // The wait of a dropped arrival is missing in the durations.
    dropped_iterations: [`count<=${Math.ceil(rate * seconds * number('LATE', 0.01))}`],
    orders_sold_out: ['count==0'],
  },
};

export const setup = () => createStock(sku, 2 * rate * seconds);
export default order;
export const handleSummary = summary;

// A rush for less stock than orders: the rate of arrivals rises to PEAK, stays there
// until long after the stock is sold out, and falls to 0.
//
//   SKU, STOCK (1000), PEAK (2000 a second), SECONDS (10), P99 (500 ms), OTHER_URL (of
//   another instance, which gets every second repeat)
//
// Through the gateway: BASE_URL is the gateway, ADMIN_URL an instance. With KEYS=off
// the orders have no Idempotency-Key. AGAIN (0) is how often a buyer repeats an order
// that is answered "sold out". The summary says how many orders the gateway refused
// itself.
import { createStock, number, order, summary, trendStats } from './shop.js';

const sku = __ENV.SKU || `k6-rush-${Date.now()}`;
const stock = number('STOCK', 1000);
const peak = number('PEAK', 2000);
const seconds = number('SECONDS', 10);
const maxVUs = Math.max(50, Math.ceil(peak / 4));

export const options = {
  summaryTrendStats: trendStats,
  scenarios: {
    rush: {
      executor: 'ramping-arrival-rate',
      startRate: Math.ceil(peak / 20),
      timeUnit: '1s',
      preAllocatedVUs: Math.min(maxVUs, 100),
      maxVUs,
      stages: [
        { target: peak, duration: `${Math.ceil(seconds / 5)}s` },
        { target: peak, duration: `${Math.ceil((seconds * 3) / 5)}s` },
        { target: 0, duration: `${Math.ceil(seconds / 5)}s` },
      ],
      gracefulStop: '30s', // waits for the orders under way
    },
  },
  thresholds: {
    checks: ['rate==1'],
    http_req_failed: ['rate<0.001'],
    http_req_duration: [`p(99)<${number('P99', 500)}`],
    // Counts the answers only. verify.js with LOAD compares them with what was sold.
    orders_accepted: ['count>0', `count<=${stock}`],
  },
};

export const setup = () => createStock(sku, stock);
export default order;
export const handleSummary = summary;

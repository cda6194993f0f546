// Everybody comes at the same time for what is not enough: arrivals climb to PEAK
// a second, stay there until long after all is sold, and go home.
//
//   SKU, STOCK (1000), PEAK (2000 a second), SECONDS (10), P99 (500 ms)
//
// Through the gateway: BASE_URL is the gateway, ADMIN_URL an instance. KEYS=off
// sends no Idempotency-Key; AGAIN (0) has a buyer who hears "sold out" ask so many
// times more. The summary says how many the gateway refused itself.
import { lay, number, order, summary, trendStats } from './shop.js';

const sku = __ENV.SKU || `k6-rush-${Date.now()}`;
const stock = number('STOCK', 1000);
const peak = number('PEAK', 2000);
const seconds = number('SECONDS', 10);
const most = Math.max(50, Math.ceil(peak / 4));

export const options = {
  summaryTrendStats: trendStats,
  scenarios: {
    rush: {
      executor: 'ramping-arrival-rate',
      startRate: Math.ceil(peak / 20),
      timeUnit: '1s',
      preAllocatedVUs: Math.min(most, 100),
      maxVUs: most,
      stages: [
        { target: peak, duration: `${Math.ceil(seconds / 5)}s` },
        { target: peak, duration: `${Math.ceil((seconds * 3) / 5)}s` },
        { target: 0, duration: `${Math.ceil(seconds / 5)}s` },
      ],
      gracefulStop: '30s', // an order under way is an order
    },
  },
  thresholds: {
    checks: ['rate==1'],
    http_req_failed: ['rate<0.001'],
    http_req_duration: [`p(99)<${number('P99', 500)}`],
    // What buyers were told. What was sold is for verify.js to ask.
    orders_accepted: [`count<=${stock}`],
  },
};

export const setup = () => lay(sku, stock);
export default order;
export const handleSummary = summary;

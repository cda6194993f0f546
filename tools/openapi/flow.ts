// Uses the generated TypeScript client against the service at HOLDFAST_URL: puts stock
// in, orders it, pays, and orders more than is left. tsc checks the types.
import createClient from "openapi-fetch";
import type { components, paths } from "./generated/schema.js";

type Order = components["schemas"]["Order"];

const client = createClient<paths>({ baseUrl: process.env.HOLDFAST_URL });

function check(ok: boolean, what: string, ...got: unknown[]): asserts ok {
  if (!ok) {
    console.error(what, JSON.stringify(got));
    process.exit(1);
  }
}

const sku = `ts-${process.pid}`;
const stock = await client.PUT("/stock/{sku}", { params: { path: { sku } }, body: { kind: "product", total: 2 } });
check(stock.response.status === 201 && stock.data?.available === 2 && stock.data.opens_at === null, "setting stock", stock.data, stock.error);

const place = (quantity: number, key: string) =>
  client.POST("/orders", {
    params: { header: { "Idempotency-Key": key } },
    body: { buyer_id: "u-1", lines: [{ sku, quantity }] },
  });
const placed = await place(1, `${sku}-1`);
check(placed.data !== undefined, "placing an order", placed.error);
const order: Order = placed.data;
check(order.status === "pending" && order.lines[0]?.quantity === 1, "placing an order", order);
const again = await place(1, `${sku}-1`);
check(again.data?.id === order.id && again.response.headers.get("Idempotent-Replayed") === "true", "placing it again", again.data);

const paid = await client.POST("/orders/{id}/pay", { params: { path: { id: order.id } }, body: { payment_id: `${sku}-p` } });
check(paid.data?.status === "paid", "paying", paid.data, paid.error);
const shown = await client.GET("/orders/{id}", { params: { path: { id: order.id } } });
check(shown.data?.history.at(-1)?.status === "paid" && shown.data.payment_id === `${sku}-p`, "reading the order", shown.data);

const refused = await place(2, `${sku}-2`);
check(refused.response.status === 409 && refused.error?.type === "/problems/sold-out", "ordering too much", refused.error);
const invalid = await place(0, `${sku}-3`);
check(invalid.error?.type === "/problems/invalid" && invalid.error.errors[0]?.field === "lines[0].quantity", "an invalid order", invalid.error);

const listed = await client.GET("/orders", { params: { query: { buyer_id: "u-1", status: "paid", limit: 1000 } } });
check(listed.data?.orders.some((o) => o.id === order.id) === true, "listing orders", listed.data);
const audit = await client.GET("/stock/{sku}/audit", { params: { path: { sku } } });
check(audit.data?.sold === 1 && audit.data.drift === 0, "auditing", audit.data);
console.log("the TypeScript client: ok");

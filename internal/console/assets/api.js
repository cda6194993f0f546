// Calls of the service. The admin token, if there is one, is kept for this tab only, and
// is sent in a header, never in an address.

const key = "holdfast-token";

export function token() {
  return sessionStorage.getItem(key) ?? "";
}

export function setToken(value) {
  if (value) sessionStorage.setItem(key, value);
  else sessionStorage.removeItem(key);
}

// headers returns the headers of a call.
export function headers(more = {}) {
  return token() ? { ...more, Authorization: "Bearer " + token() } : more;
}

// call makes a call and returns its status and its JSON. A service that cannot be
// reached has the status 0.
export async function call(method, path, body, more = {}) {
  try {
    const response = await fetch(path, {
      method,
      cache: "no-store",
      headers: headers(body === undefined ? more : { ...more, "Content-Type": "application/json" }),
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    return { status: response.status, value: await response.json() };
  } catch {
    return { status: 0, value: {} };
  }
}

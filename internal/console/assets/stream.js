// The stream of events. It is read with fetch and not with EventSource, which can send
// no token. It connects again by itself, also when nothing was heard for some time.
import { headers } from "./api.js";

const silence = 8000; // milliseconds after which a stream is taken to be dead
const hiddenFor = 60000; // milliseconds after which a tab that nobody sees stops reading
const pauses = [300, 1000, 2000, 4000]; // before the tries to connect again

// Stream reads the events at a path. path() may return another path each time.
export class Stream {
  // onEvent(name, data) is called for each event, and onState(state, detail) when the
  // state changes: connecting, live, unreachable, denied (detail says why) or paused.
  constructor(path, onEvent, onState) {
    this.path = path;
    this.onEvent = onEvent;
    this.onState = onState;
    this.lastID = "";
    this.failures = 0;
    this.hidden = 0;
    this.paused = false;
    document.addEventListener("visibilitychange", () => this.seen());
    addEventListener("online", () => {
      if (!this.paused) this.open();
    });
    this.seen(); // the tab may have been opened in the background
  }

  // open connects, in place of an earlier connection.
  open() {
    this.close();
    this.abort = new AbortController();
    this.read(this.abort.signal);
  }

  // close disconnects.
  close() {
    clearTimeout(this.retry);
    clearTimeout(this.watchdog);
    this.abort?.abort();
  }

  // seen stops reading some time after the tab was hidden, and begins again when the tab
  // is shown.
  seen() {
    clearTimeout(this.hidden);
    if (document.hidden) {
      this.hidden = setTimeout(() => {
        this.paused = true;
        this.close();
        this.onState("paused");
      }, hiddenFor);
    } else if (this.paused) {
      this.paused = false;
      this.open();
    }
  }

  async read(signal) {
    this.onState("connecting");
    try {
      this.listen();
      const response = await fetch(this.path(), {
        cache: "no-store",
        signal,
        headers: headers(this.lastID ? { Accept: "text/event-stream", "Last-Event-ID": this.lastID } : { Accept: "text/event-stream" }),
      });
      if (response.status === 401) {
        const problem = await response.json();
        this.close();
        this.onState("denied", problem.detail);
        return;
      }
      if (!response.ok) throw new Error(response.statusText);
      await this.parse(response.body.pipeThrough(new TextDecoderStream()).getReader());
    } catch {
      // The next try says whether the service is back.
    }
    if (signal.aborted && !this.silent) return;
    this.silent = false;
    this.onState("unreachable");
    const pause = pauses[Math.min(this.failures++, pauses.length - 1)];
    this.retry = setTimeout(() => this.open(), pause * (0.8 + 0.4 * Math.random()));
  }

  // listen ends the connection if nothing is heard.
  listen() {
    clearTimeout(this.watchdog);
    const abort = this.abort;
    this.watchdog = setTimeout(() => {
      this.silent = true;
      abort.abort();
    }, silence);
  }

  async parse(reader) {
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      this.listen();
      const messages = (rest + value).split("\n\n");
      rest = messages.pop();
      for (const message of messages) this.take(message);
    }
  }

  take(message) {
    let name = "message";
    let data = "";
    for (const line of message.split("\n")) {
      if (line.startsWith("event: ")) name = line.slice(7);
      else if (line.startsWith("id: ")) this.lastID = line.slice(4);
      else if (line.startsWith("data: ")) data += line.slice(6);
    }
    this.failures = 0;
    this.onState("live");
    this.onEvent(name, JSON.parse(data));
  }
}

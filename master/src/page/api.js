// Talks to the master. Server-sent events are read out of the bodies of answers to `fetch`, since an
// EventSource can send neither a key nor a question.

import { plainly } from "./words.js";

/** Where this tab keeps the API key. */
const KEY = "cake.api-key";
/** Between attempts to follow the cluster, in milliseconds: the first delay, and the longest it grows to. */
const FIRST_DELAY = 1_000;
const LONGEST_DELAY = 10_000;
/** The cluster tells something every second: after so many silent milliseconds nobody is there. */
const SILENCE = 15_000;

/**
 * Why the master gave no answer, as a sentence for people. `status` is HTTP's, or 0 if there was none; `code` the
 * API's own word for it, if it has one.
 */
export class Trouble extends Error {
  constructor(sentence, status = 0, code = null) {
    super(sentence);
    this.name = "Trouble";
    this.status = status;
    this.code = code;
  }
}

/** Why something was not done, as a sentence; what is a mistake of this page is told to the console alone. */
export function inWords(error) {
  if (error instanceof Trouble) {
    return error.message;
  }
  console.error(error);
  return "The answer cannot be read: it is not in the form that this page knows.";
}

/** What the master itself says about a failure, as a sentence. */
export function saidByMaster({ message, code } = {}, status = 0) {
  const words = plainly(String(message ?? "").trim()) || "something went wrong";
  return new Trouble(`The master says: ${words}${/[.!?]$/.test(words) ? "" : "."}`, status, code ?? null);
}

let key = null;
try {
  key = sessionStorage.getItem(KEY);
} catch {
  // A browser that keeps nothing: the key lasts until the page is loaded again.
}

let askForKey = async () => null;
let asking = null; // The question that is on the screen, if there is one.

/** `ask(refused)` gets a key from whoever sits there, or null; `refused` says that the last one was wrong. */
export function onKeyNeeded(ask) {
  askForKey = ask;
}

/** Asks for a key; whoever needs one while the question is on the screen waits for the same answer. */
async function newKey() {
  asking ??= askForKey(key !== null).finally(() => {
    asking = null;
  });
  const given = await asking;
  // A header can carry nothing else; what it cannot carry is no key.
  if (given === null || !/^[\x21-\x7e]+$/.test(given)) {
    return false;
  }
  key = given;
  try {
    sessionStorage.setItem(KEY, given);
  } catch {
    // As above.
  }
  return true;
}

/**
 * A successful answer of the master; to a POST of `body` as JSON if there is one.
 *
 * Throws a `Trouble`, or an `AbortError` once `signal` is aborted.
 */
export async function request(path, { body, signal } = {}) {
  for (;;) {
    const tried = key;
    const headers = tried === null ? {} : { Authorization: `Bearer ${tried}` };
    const options = { headers, signal, cache: "no-store" };
    if (body !== undefined) {
      options.method = "POST";
      options.body = JSON.stringify(body);
      headers["Content-Type"] = "application/json";
    }
    const sent = fetch(path, options);
    const response = await reached(sent, "The master cannot be reached. Is it still running?");
    if (response.ok) {
      return response;
    }
    // Somebody else may have brought a new key while this one was on its way.
    if (response.status === 401 && (key !== tried || (await newKey()))) {
      continue;
    }
    throw await refusal(response);
  }
}

/** Gives failures of the network, which browsers word each in their own way, the same words. */
async function reached(promise, sentence) {
  try {
    return await promise;
  } catch (error) {
    throw error.name === "AbortError" ? error : new Trouble(sentence);
  }
}

async function refusal(response) {
  if (response.status === 401) {
    return new Trouble("The master asks for an API key.", 401);
  }
  const text = await response.text().catch(() => "");
  let error = null;
  try {
    error = JSON.parse(text).error;
  } catch {
    // Not the master's own words, perhaps a proxy's: the status has to do.
  }
  const { status } = response;
  const said = typeof error === "string" ? { message: error } : error; // Ollama's paths have the words alone.
  return said?.message ? saidByMaster(said, status) : new Trouble(`The master answers with status ${status}.`, status);
}

/** The models that can be asked, as `/v1/models` describes them. */
export async function servedModels() {
  const { data } = await (await request("/v1/models")).json();
  return (data ?? []).filter((model) => typeof model?.id === "string");
}

/**
 * The events of a stream, each with its type and data, as the HTML standard reads them.
 *
 * Throws like `request`. Leaving the loop early ends the request.
 */
export async function* serverSentEvents(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder(); // Keeps the beginning of a character whose rest is in the next chunk.
  let rest = "";
  let event = "message";
  let data = [];
  try {
    for (;;) {
      const { value, done } = await reached(reader.read(), "The connection to the master broke off.");
      if (done) {
        return; // An event without its blank line is incomplete, and dropped.
      }
      rest += decoder.decode(value, { stream: true });
      // A carriage return at the very end stays in `rest`: its line feed may be in the next chunk.
      const lines = rest.split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      for (const line of lines) {
        if (line === "") {
          if (data.length > 0) {
            yield { event, data: data.join("\n") };
          }
          event = "message";
          data = [];
          continue;
        }
        // Comments have no name before the colon, and are passed over with fields that are not known.
        const [, name, content = ""] = /^([^:]*)(?:: ?(.*))?$/s.exec(line);
        if (name === "event") {
          event = content;
        } else if (name === "data") {
          data.push(content);
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** The objects of a body that has one in each line; throws what an object's `error` says. */
export async function* jsonLines(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reached(reader.read(), "The connection to the master broke off.");
      const lines = done ? [rest] : (rest + value).split("\n");
      rest = done ? "" : lines.pop();
      for (const line of lines.filter((line) => line.trim() !== "")) {
        const said = JSON.parse(line);
        if (said.error) {
          throw saidByMaster({ message: said.error });
        }
        yield said;
      }
      if (done) {
        return;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/**
 * Follows the cluster for as long as the page is open: `onState` gets what each event says, `onDown` why
 * there is none for a while. The result tries again at once when it is called.
 */
export function followCluster({ onState, onDown }) {
  let attempt = null;
  let wake = () => {};
  let hurried = false;
  const hurry = () => {
    hurried = true;
    attempt?.abort();
    wake();
  };
  const pause = (milliseconds) =>
    new Promise((resolve) => {
      wake = resolve;
      if (milliseconds !== Infinity) {
        setTimeout(resolve, milliseconds);
      }
    });
  // Browsers open few connections to one place: a page that nobody sees gives its one back.
  document.addEventListener("visibilitychange", () => (document.hidden ? attempt?.abort() : hurry()));

  const run = async () => {
    let delay = FIRST_DELAY;
    for (;;) {
      hurried = false;
      attempt = new AbortController();
      let trouble = new Trouble("The master ended the connection.");
      try {
        await listen(attempt, (state) => {
          delay = FIRST_DELAY;
          onState(state);
        });
      } catch (error) {
        trouble = error;
      }
      if (hurried) {
        continue;
      }
      if (document.hidden) {
        await pause(Infinity);
        continue;
      }
      if (!(trouble instanceof Trouble) && trouble.name !== "AbortError") {
        console.error(trouble); // A mistake in this page, not a failure of the network.
      }
      onDown(trouble);
      // Without a key nothing changes by itself. Many pages that lost one master do not come back at once.
      const jitter = 0.75 + Math.random() / 2;
      await pause(trouble.status === 401 ? Infinity : delay * jitter);
      delay = Math.min(delay * 2, LONGEST_DELAY);
    }
  };
  run();
  return hurry;
}

/** One connection: ends with it, or with an `AbortError` when the master falls silent. */
async function listen(attempt, onState) {
  const response = await request("/api/events", { signal: attempt.signal });
  let timer = null;
  const watch = () => {
    clearTimeout(timer);
    timer = setTimeout(() => attempt.abort(), SILENCE);
  };
  watch();
  try {
    for await (const { event, data } of serverSentEvents(response.body)) {
      watch();
      if (event === "cluster") {
        onState(JSON.parse(data));
      }
    }
  } finally {
    clearTimeout(timer);
  }
}

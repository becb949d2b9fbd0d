// The conversation: asks the master, writes down what comes, and keeps it in this tab.

import { Trouble, request, saidByMaster, serverSentEvents } from "./api.js";
import { Turn } from "./turn.js";

/** Where this tab keeps the conversation. */
const KEPT = "cake.chat";
/** Milliseconds between drawings of a growing answer: the model may need this very processor. */
const DRAW_EVERY = 60;
/** Whoever has scrolled up by more than so many pixels reads, and is not taken along to the end. */
const NEAR_END = 80;

const byId = (id) => document.getElementById(id);

export class Chat {
  #turns = [];
  #from = 0; // The first turn that the model is told of: those before no longer fit into its context.
  #running = null; // The AbortController of the answer that is on its way.
  #isReady = false;
  #model = null;
  #options = [...document.querySelectorAll("[data-option]")];

  constructor() {
    const prompt = byId("prompt");
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#ask(prompt.value);
    });
    prompt.addEventListener("keydown", (event) => {
      // While a word is being composed, as in Japanese, Enter chooses it.
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.#ask(prompt.value);
      }
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !document.querySelector("dialog[open]")) {
        this.#running?.abort();
      }
    });
    byId("welcome").addEventListener("click", (event) => {
      const suggestion = event.target.closest("button");
      if (suggestion) {
        this.#ask(suggestion.textContent);
      }
    });
    byId("stop").addEventListener("click", () => this.#running?.abort());
    byId("regenerate").addEventListener("click", () => this.#again());
    byId("clear").addEventListener("click", () => this.#clear());
    addEventListener("pagehide", () => this.#keep());
    this.#restore();
    this.#update();
  }

  /** The name to ask for, and how many tokens its context has, if that is known. */
  setModel(name, context) {
    this.#model = name;
    if (context) {
      byId("max-tokens").max = context;
      byId("max-tokens-range").textContent = `1 to ${context}`;
    }
  }

  /** Whether questions can be asked; if not, what goes on, and which share of it is done. */
  allow(isReady, text = "", share = "") {
    this.#isReady = isReady;
    // Only what has changed is written, so that screen readers say each sentence once.
    const gate = { "gate-text": isReady ? "" : text, "gate-share": isReady ? "" : share };
    for (const [id, words] of Object.entries(gate)) {
      if (byId(id).textContent !== words) {
        byId(id).textContent = words;
      }
    }
    this.#update();
  }

  #ask(question) {
    if (!this.#isReady || this.#running || question.trim() === "" || !this.#hasSoundOptions()) {
      return;
    }
    const prompt = byId("prompt");
    if (prompt.value === question) {
      prompt.value = ""; // A suggestion leaves alone what was begun here.
    }
    this.#add(new Turn({ question: question.trim() }));
    this.#scrollToEnd();
    this.#answer(this.#turns.at(-1));
  }

  /** Another answer to the last question. */
  #again() {
    const turn = this.#turns.at(-1);
    if (turn && this.#isReady && !this.#running && this.#hasSoundOptions()) {
      this.#answer(turn);
    }
  }

  #clear() {
    this.#running?.abort();
    this.#running = null;
    this.#turns = [];
    this.#from = 0;
    byId("messages").replaceChildren();
    this.#update();
    this.#keep();
    byId("prompt").focus();
  }

  #add(turn) {
    this.#turns.push(turn);
    turn.mount(byId("messages"), () => this.#again());
  }

  async #answer(turn) {
    const running = new AbortController();
    const wasPressed = document.activeElement instanceof HTMLButtonElement;
    this.#running = running;
    turn.begin();
    this.#turns.forEach((each) => this.#draw(each)); // Those before it lose their Retry.
    this.#update();
    if (wasPressed) {
      byId("stop").focus(); // What was pressed is gone or of no use now.
    }
    try {
      turn.end = await this.#receive(turn, running.signal);
    } catch (error) {
      turn.end = running.signal.aborted ? "stopped" : "failed";
      turn.trouble = running.signal.aborted ? null : inWords(error);
    }
    if (this.#running !== running) {
      return; // Cleared meanwhile.
    }
    const wasOnStop = document.activeElement === byId("stop");
    this.#running = null;
    if (turn.end === "context") {
      this.#forget(turn); // Another answer, or the next one, has more room.
    }
    this.#draw(turn);
    this.#update();
    if (wasOnStop) {
      byId("send").focus();
    }
    this.#keep();
  }

  /** Asks for the answer of `turn` and writes down what comes. Returns the reason why it ended. */
  async #receive(turn, signal) {
    const began = performance.now();
    // Seconds until the first token and from it to the last one, pieces of text, and the master's own count.
    const stats = { first: null, seconds: 0, pieces: 0, usage: null };
    turn.stats = stats;
    const response = await this.#send(turn, signal);
    let end = "stop";
    let drawing = null;
    try {
      for await (const { data } of serverSentEvents(response.body)) {
        if (data === "[DONE]") {
          return end;
        }
        const { error, usage, choices } = JSON.parse(data);
        if (error) {
          throw saidByMaster(error);
        }
        stats.usage = usage ?? stats.usage;
        const choice = choices?.[0];
        end = choice?.finish_details?.type === "context" ? "context" : (choice?.finish_reason ?? end);
        const { role, content, reasoning_content: thought } = choice?.delta ?? {};
        if (role || (typeof content !== "string" && typeof thought !== "string")) {
          continue; // The opening says only who speaks.
        }
        // Most tokens have a piece of their own; the master counts all of them in the end.
        const now = (performance.now() - began) / 1000;
        stats.pieces += 1;
        stats.first ??= now;
        stats.seconds = now - stats.first;
        turn.thought += thought ?? "";
        turn.answer += content ?? "";
        drawing ??= setTimeout(() => {
          drawing = null;
          this.#draw(turn);
        }, DRAW_EVERY);
      }
    } finally {
      clearTimeout(drawing);
    }
    throw new Trouble("The connection to the master broke off before the answer was complete.");
  }

  /** Sends the question of `turn`, with as many of the turns before it as fit into the context. */
  async #send(turn, signal) {
    const from = this.#from;
    for (;;) {
      try {
        const response = await request("/v1/chat/completions", { body: this.#body(turn), signal });
        turn.forgotten = this.#from > from ? this.#from : 0;
        return response;
      } catch (error) {
        if (error.code !== "context_length_exceeded" || !this.#forget(turn)) {
          // The question itself is too long, or something else is wrong; or all was cleared meanwhile.
          this.#from = this.#turns.includes(turn) ? from : this.#from;
          throw error;
        }
      }
    }
  }

  /**
   * Leaves the oldest turns before `turn` out of what the model is told from now on; false if there is none. A quarter
   * at a time: of a conversation that began elsewhere at every turn, nothing would ever be in the cache.
   */
  #forget(turn) {
    const before = this.#turns.indexOf(turn) - this.#from;
    if (before <= 0) {
      return false;
    }
    this.#from += Math.ceil(before / 4);
    return true;
  }

  #body(turn) {
    const system = byId("system").value.trim();
    const messages = system === "" ? [] : [{ role: "system", content: system }];
    for (const { question, answer } of this.#turns.slice(this.#from, this.#turns.indexOf(turn))) {
      // Templates want questions and answers in turn: a question without an answer is left out.
      if (answer !== "") {
        messages.push({ role: "user", content: question }, { role: "assistant", content: answer });
      }
    }
    messages.push({ role: "user", content: turn.question });
    const given = this.#options.filter((input) => input.value !== "");
    return {
      model: this.#model ?? undefined,
      messages,
      stream: true,
      stream_options: { include_usage: true },
      ...Object.fromEntries(given.map((input) => [input.dataset.option, Number(input.value)])),
    };
  }

  /** Whether the settings can be sent. Shows the first one that cannot. */
  #hasSoundOptions() {
    const wrong = this.#options.find((input) => !input.checkValidity());
    if (wrong) {
      byId("settings").open = true; // What is folded away cannot be pointed at.
      wrong.reportValidity();
    }
    return !wrong;
  }

  #draw(turn) {
    const { scrollHeight, scrollTop, clientHeight } = byId("conversation");
    turn.draw(turn === this.#turns.at(-1));
    if (scrollHeight - scrollTop - clientHeight < NEAR_END) {
      this.#scrollToEnd();
    }
  }

  #scrollToEnd() {
    byId("conversation").scrollTop = byId("conversation").scrollHeight;
  }

  /** What can be pressed now. */
  #update() {
    const isFree = this.#isReady && !this.#running;
    byId("welcome").hidden = this.#turns.length > 0;
    byId("stop").hidden = !this.#running;
    byId("send").hidden = Boolean(this.#running);
    byId("send").disabled = !this.#isReady;
    byId("clear").disabled = this.#turns.length === 0;
    byId("regenerate").disabled = !isFree || this.#turns.length === 0;
    for (const button of document.querySelectorAll("[data-asks]")) {
      button.disabled = !isFree;
    }
  }

  #keep() {
    const options = this.#options.map((input) => [input.dataset.option, input.value]);
    const system = byId("system").value;
    const kept = { turns: this.#turns, from: this.#from, system, options: Object.fromEntries(options) };
    try {
      sessionStorage.setItem(KEPT, JSON.stringify(kept));
    } catch {
      // Too long for the browser, or it keeps nothing: the conversation lasts as long as the page.
    }
  }

  #restore() {
    let kept = null;
    try {
      kept = JSON.parse(sessionStorage.getItem(KEPT));
    } catch {
      // As above.
    }
    byId("system").value = kept?.system ?? "";
    for (const input of this.#options) {
      input.value = kept?.options?.[input.dataset.option] ?? "";
    }
    for (const turn of kept?.turns ?? []) {
      // What ran when the page was left was stopped by that.
      this.#add(new Turn({ ...turn, end: turn.end === "running" ? "stopped" : turn.end }));
    }
    this.#from = Math.min(kept?.from ?? 0, this.#turns.length);
    this.#turns.forEach((turn) => this.#draw(turn));
    this.#scrollToEnd();
  }
}

function inWords(error) {
  if (error instanceof Trouble) {
    return error.message;
  }
  console.error(error);
  return `The answer cannot be read: ${error.message}`;
}

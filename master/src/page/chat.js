// The conversation that is shown: asks the master, writes down what comes, and has the browser keep it.

import { Trouble, inWords, request, saidByMaster, serverSentEvents } from "./api.js";
import { shownId } from "./library.js";
import { Talk, newConversation, titleOf } from "./talk.js";
import { Turn } from "./turn.js";
import { say } from "./words.js";

const NO_ROOM = "This browser has no room to keep more: delete conversations that you do not need.";
const NOT_KEPT = "This conversation is not kept any more: load the page again.";
/** Milliseconds between drawings of a growing answer: the model may need this very processor. */
const DRAW_EVERY = 60;
/** Milliseconds after which what there is of an answer is kept. */
const KEEP_EVERY = 2_000;
/** Whoever has scrolled up by more than so many pixels reads, and is not taken along to the end. */
const NEAR_END = 80;

/** Frames until a conversation that was opened stands still. */
const SETTLING = 6;

const byId = (id) => document.getElementById(id);

export class Chat {
  #store;
  #settings;
  #models;
  #onKept;
  #talk = new Talk(newConversation());
  #path = []; // The turns that are on the screen.
  #atWork = new Map(); // Conversations with an answer on its way, also those that are not shown.
  #isReady = false;

  /** `onKept` is called when this tab has changed a conversation. */
  constructor({ store, settings, models, onKept }) {
    this.#store = store;
    this.#settings = settings;
    this.#models = models;
    this.#onKept = onKept;
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
      if (event.key === "Escape" && !document.querySelector("dialog[open], [popover]:popover-open")) {
        this.#talk.running?.abort();
      }
    });
    byId("welcome").addEventListener("click", (event) => {
      const suggestion = event.target.closest("button");
      if (suggestion) {
        this.#ask(suggestion.textContent);
      }
    });
    byId("stop").addEventListener("click", () => this.#talk.running?.abort());
    addEventListener("hashchange", () => this.open());
    addEventListener("pagehide", () => this.#atWork.forEach((talk) => this.#keepTurn(stopped(talk.path().at(-1)))));
    store.onChange((id) => this.#learn(id));
    this.#update();
  }

  /** Shows the conversation that the tab's address names, or a new one. */
  async open() {
    const id = shownId();
    if (id === this.#talk.id && this.#path.length > 0) {
      return;
    }
    const kept = id && !this.#atWork.has(id) ? await this.#store.conversation(id) : null;
    const turns = kept ? (await this.#store.turns(id)).map((turn) => new Turn(stopped(turn))) : [];
    if (id !== shownId()) {
      return; // Somebody went on meanwhile.
    }
    this.#talk = this.#atWork.get(id) ?? new Talk(kept ?? newConversation(), turns);
    this.#settings.show(this.#talk.kept);
    this.#models.choose(this.#talk.kept.model);
    this.#show();
    this.#scrollToEnd(SETTLING);
  }

  /** What is asked with has changed. */
  changed() {
    const { kept } = this.#talk;
    // Until the master says which models it has, a conversation keeps the one that it had.
    Object.assign(kept, this.#settings.get(), { model: this.#models.chosen ?? kept.model });
    if (this.#path.length > 0) {
      const { id, system, options, model } = kept;
      this.#keep(this.#store.change(id, { system, options, model }));
    }
  }

  /** Whether questions can be asked; if not, what goes on, and which share of it is done. */
  allow(isReady, text = "", share = "") {
    this.#isReady = isReady;
    say(byId("gate-text"), isReady ? "" : text);
    say(byId("gate-share"), isReady ? "" : share);
    this.#update();
  }

  #mayAsk() {
    return this.#isReady && !this.#talk.running && this.#settings.areSound();
  }

  #ask(question) {
    if (question.trim() === "" || !this.#mayAsk()) {
      return;
    }
    const prompt = byId("prompt");
    if (prompt.value === question) {
      prompt.value = ""; // A suggestion leaves alone what was begun here.
    }
    this.#begin(question.trim(), this.#path.at(-1)?.id ?? null);
  }

  /** Asks `question` after the turn of this id: beside what was asked there before. */
  #begin(question, parent) {
    const talk = this.#talk;
    const turn = new Turn({ conversation: talk.id, parent, question, model: this.#models.chosen });
    const isNew = talk.kept.title === "";
    if (parent !== (talk.path().at(-1)?.id ?? null)) {
      talk.kept.from = 0; // What was left out for the way that ended may have room on this one.
    }
    talk.add(turn);
    talk.kept.changed = turn.made;
    if (isNew) {
      Object.assign(talk.kept, this.#settings.get(), { title: titleOf(question), model: this.#models.chosen });
      history.replaceState(null, "", `#${talk.id}`);
    }
    const { id, changed, leaf } = talk.kept;
    this.#keep(isNew ? this.#store.add({ ...talk.kept }) : this.#store.change(id, { changed, leaf }));
    this.#show();
    this.#scrollToEnd();
    this.#answer(talk, turn);
  }

  #does = {
    retry: (turn) => this.#mayAsk() && this.#answer(this.#talk, turn),
    again: (turn) => this.#mayAsk() && this.#begin(turn.question, turn.parent),
    edit: (turn, question) => this.#mayAsk() && this.#begin(question, turn.parent),
    choose: (turn, step) => {
      const talk = this.#talk;
      const versions = talk.versions(turn);
      const other = versions[versions.indexOf(turn) + step];
      if (!other || talk.running) {
        return;
      }
      talk.choose(other);
      talk.kept.from = 0;
      this.#keep(this.#store.change(talk.id, { leaf: talk.kept.leaf }));
      this.#show();
      other.focusVersions(step);
    },
  };

  /** Brings the screen to the way that is shown now; turns that stay there keep their nodes. */
  #show() {
    const path = this.#talk.path();
    let same = 0;
    while (same < path.length && this.#path[same] === path[same]) {
      same += 1;
    }
    const messages = byId("messages");
    while (messages.children.length > same) {
      messages.lastElementChild.remove();
    }
    this.#path = path;
    path.slice(same).forEach((turn) => turn.mount(messages, this.#does));
    path.slice(Math.max(same - 1, 0)).forEach((turn) => this.#draw(turn));
    this.#update();
  }

  async #answer(talk, turn) {
    const running = new AbortController();
    const wasPressed = document.activeElement instanceof HTMLButtonElement;
    talk.running = running;
    this.#atWork.set(talk.id, talk);
    turn.begin();
    this.#path.slice(-2).forEach((each) => this.#draw(each)); // The one before it loses its Retry.
    this.#update();
    this.#keepTurn(turn);
    if (wasPressed) {
      byId("stop").focus(); // What was pressed is gone or of no use now.
    }
    try {
      turn.end = await this.#receive(talk, turn, running.signal);
    } catch (error) {
      turn.end = running.signal.aborted ? "stopped" : "failed";
      turn.trouble = running.signal.aborted ? null : inWords(error);
    }
    const wasOnStop = document.activeElement === byId("stop");
    talk.running = null;
    this.#atWork.delete(talk.id);
    if (turn.end === "context") {
      this.#forget(talk, turn); // Another answer, or the next one, has more room.
    }
    this.#draw(turn);
    this.#update();
    if (wasOnStop && talk === this.#talk) {
      byId("send").focus();
    }
    await this.#keepTurn(turn);
    await this.#keep(this.#store.change(talk.id, { from: talk.kept.from }));
    this.#learn(talk.id); // What other tabs did meanwhile.
  }

  /** Asks for the answer of `turn` and writes down what comes. Returns the reason why it ended. */
  async #receive(talk, turn, signal) {
    const began = performance.now();
    // Seconds until the first token and from it to the last one, pieces of text, and the master's own count.
    const stats = { first: null, seconds: 0, pieces: 0, usage: null };
    turn.stats = stats;
    const response = await this.#send(talk, turn, signal);
    let end = "stop";
    let drawing = null;
    let kept = began;
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
        const now = performance.now();
        stats.pieces += 1;
        stats.first ??= (now - began) / 1000;
        stats.seconds = (now - began) / 1000 - stats.first;
        turn.thought += thought ?? "";
        turn.answer += content ?? "";
        if (now - kept > KEEP_EVERY) {
          kept = now;
          this.#keepTurn(turn);
        }
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
  async #send(talk, turn, signal) {
    const { from } = talk.kept;
    for (;;) {
      try {
        const response = await request("/v1/chat/completions", { body: this.#body(talk, turn), signal });
        turn.forgotten = talk.kept.from > from ? talk.kept.from : 0;
        return response;
      } catch (error) {
        if (error.code !== "context_length_exceeded" || !this.#forget(talk, turn)) {
          talk.kept.from = from; // The question itself is too long, or something else is wrong.
          throw error;
        }
      }
    }
  }

  /**
   * Leaves the oldest turns before `turn` out of what the model is told from now on; false if there is none. A quarter
   * at a time: of a conversation that began elsewhere at every turn, nothing would ever be in the cache.
   */
  #forget(talk, turn) {
    const before = talk.path().indexOf(turn) - talk.kept.from;
    if (before <= 0) {
      return false;
    }
    talk.kept.from += Math.ceil(before / 4);
    return true;
  }

  #body(talk, turn) {
    const { system, options, from, model } = talk.kept;
    const messages = system.trim() === "" ? [] : [{ role: "system", content: system.trim() }];
    const path = talk.path();
    for (const { question, answer } of path.slice(from, path.indexOf(turn))) {
      // Templates want questions and answers in turn: a question without an answer is left out.
      if (answer !== "") {
        messages.push({ role: "user", content: question }, { role: "assistant", content: answer });
      }
    }
    messages.push({ role: "user", content: turn.question });
    const numbers = Object.entries(options).map(([name, value]) => [name, Number(value)]);
    const stream = { stream: true, stream_options: { include_usage: true } };
    return { model, messages, ...stream, ...Object.fromEntries(numbers) };
  }

  /** Another tab has changed this conversation: what it added is known, and what it answered shown. */
  async #learn(id) {
    const talk = this.#talk;
    if (id !== talk.id || talk.running) {
      return;
    }
    const [kept, turns] = await Promise.all([this.#store.conversation(id), this.#store.turns(id)]);
    if (talk !== this.#talk || talk.running) {
      return;
    }
    if (!kept) {
      history.replaceState(null, "", location.pathname);
      return this.open();
    }
    const { leaf } = talk.kept;
    talk.kept = { ...kept, leaf }; // This tab stays on the way that it shows.
    if (!byId("settings").contains(document.activeElement)) {
      this.#settings.show(kept); // Else somebody is changing them here.
    }
    let isOther = false;
    for (const turn of turns.sort((one, other) => one.made - other.made)) {
      const own = talk.turn(turn.id);
      if (own?.isAs(turn)) {
        continue; // What is shown stays as it is.
      }
      isOther = true;
      own ? own.take(turn) : talk.learn(new Turn(turn));
    }
    if (isOther) {
      this.#show();
      this.#path.forEach((turn) => this.#draw(turn));
    }
  }

  #draw(turn) {
    const at = this.#path.indexOf(turn);
    if (at < 0) {
      return; // Its conversation is not shown.
    }
    const { scrollHeight, scrollTop, clientHeight } = byId("conversation");
    const versions = this.#talk.versions(turn);
    turn.draw(at === this.#path.length - 1, versions.indexOf(turn) + 1, versions.length);
    if (scrollHeight - scrollTop - clientHeight < NEAR_END) {
      this.#scrollToEnd();
    }
  }

  /** Goes to the end, and in the next `frames` once more: how high turns are is known once they are seen. */
  #scrollToEnd(frames = 0) {
    const conversation = byId("conversation");
    conversation.scrollTop = conversation.scrollHeight;
    const before = conversation.scrollTop;
    const settle = () => {
      const { scrollTop, scrollHeight, clientHeight } = conversation;
      const isLeft = scrollTop < before && scrollHeight - scrollTop - clientHeight > NEAR_END;
      if (!isLeft) {
        this.#scrollToEnd(frames - 1); // Else somebody has gone elsewhere meanwhile.
      }
    };
    if (frames > 0) {
      requestAnimationFrame(settle);
    }
  }

  /** What can be pressed now. */
  #update() {
    const running = Boolean(this.#talk.running);
    byId("welcome").hidden = this.#path.length > 0;
    byId("stop").hidden = !running;
    byId("send").hidden = running;
    byId("send").disabled = !this.#isReady;
    byId("chat").dataset.free = String(this.#isReady && !running); // Buttons of turns look at it, too.
    for (const button of document.querySelectorAll("[data-asks]")) {
      button.disabled = !this.#isReady || running;
    }
  }

  async #keepTurn(turn) {
    if (turn) {
      await this.#keep(this.#store.write({ ...turn }));
    }
  }

  async #keep(keeping) {
    try {
      await keeping;
      say(byId("not-kept"), "");
      this.#onKept();
    } catch (error) {
      console.warn(error);
      const isFull = error?.name === "QuotaExceededError";
      say(byId("not-kept"), isFull ? NO_ROOM : NOT_KEPT);
    }
    byId("not-kept").hidden = byId("not-kept").textContent === "";
  }
}

/** A turn as it was kept: what ran when its page was left was stopped by that. */
function stopped(turn) {
  return turn?.end === "running" ? { ...turn, end: "stopped" } : turn;
}

// One question and its answer: what is known of them, and how they look.

import { drawMarkdown } from "./markdown.js";
import { copied } from "./copy.js";
import { newId } from "./store.js";

/** What is said below an answer that did not end by itself. */
const NOTES = {
  length: "Cut off here: the answer reached its limit of tokens.",
  context: "Cut off here: the context is full. What comes next leaves out the oldest turns.",
  stopped: "Stopped here.",
};

export class Turn {
  #nodes = null;

  /** As it was kept, or with nothing but a question and its place. */
  constructor(kept) {
    /** Its own name, that of its conversation, and that of the turn before it, or null. */
    this.id = kept.id ?? newId();
    this.conversation = kept.conversation;
    this.parent = kept.parent ?? null;
    /** When it was asked, in milliseconds since 1970. */
    this.made = kept.made ?? Date.now();
    this.question = kept.question;
    /** Which model was asked, if that is known. */
    this.model = kept.model ?? null;
    this.take(kept);
  }

  /** Takes the answer as it was kept. */
  take({ thought = "", answer = "", end = null, trouble = null, stats = null, forgotten = 0 }) {
    /** What some models write before their answer. */
    this.thought = thought;
    this.answer = answer;
    /** "running", then the master's reason, "context" if that is full, "stopped" by whoever reads, or "failed". */
    this.end = end;
    /** Why it failed, in words. */
    this.trouble = trouble;
    /** `{ first, seconds, pieces, usage }`: see `Chat`. */
    this.stats = stats;
    /** How many turns the model is not told of any more, if it was told of some of them before. */
    this.forgotten = forgotten;
  }

  /** Whether the answer is as it was kept. */
  isAs({ thought = "", answer = "", end = null, trouble = null }) {
    return this.thought === thought && this.answer === answer && this.end === end && this.trouble === trouble;
  }

  /** Forgets the answer for another one. */
  begin() {
    this.take({ end: "running" });
  }

  /**
   * Makes its nodes at the end of `parent`. `does` are what its buttons do, each called with this turn: `retry`, `again`,
   * `edit` with the other question, and `choose` with how many versions to go on.
   */
  mount(parent, does) {
    const made = document.getElementById("turn-template").content.cloneNode(true);
    const node = (selector) => made.querySelector(selector);
    this.#nodes = {
      article: node("[data-role=assistant]"),
      question: node(".question"),
      edit: node(".edit"),
      thought: node(".thought"),
      thoughtText: node(".thought > div"),
      answer: node(".answer"),
      waiting: node(".waiting"),
      note: node(".note"),
      trouble: node(".trouble"),
      troubleText: node(".trouble-text"),
      retry: node(".retry"),
      tools: node(".tools"),
      versions: node(".versions"),
      version: node(".version"),
      earlier: node(".earlier"),
      later: node(".later"),
      copy: node(".copy"),
      again: node(".again"),
      stats: node(".stats"),
    };
    const { question, edit, retry, earlier, later, copy, again, answer } = this.#nodes;
    question.textContent = this.question;
    retry.addEventListener("click", () => does.retry(this));
    again.addEventListener("click", () => does.again(this));
    earlier.addEventListener("click", () => does.choose(this, -1));
    later.addEventListener("click", () => does.choose(this, 1));
    edit.addEventListener("click", () => this.#edit((words) => does.edit(this, words)));
    copy.addEventListener("click", () => copied(copy, this.answer, answer));
    parent.append(made);
  }

  /** Lets somebody write the question in other words, in its place. */
  #edit(ask) {
    const { question, edit } = this.#nodes;
    const form = document.getElementById("edit-template").content.cloneNode(true).querySelector("form");
    const field = form.querySelector("textarea");
    field.value = this.question;
    const end = () => {
      form.remove();
      question.hidden = edit.hidden = false;
      edit.focus();
    };
    const send = (event) => {
      event.preventDefault();
      if (field.value.trim() !== "") {
        end();
        ask(field.value.trim());
      }
    };
    form.addEventListener("submit", send);
    form.querySelector(".cancel").addEventListener("click", end);
    form.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        end();
      } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.target === field) {
        send(event);
      }
    });
    question.hidden = edit.hidden = true;
    question.after(form);
    field.focus();
  }

  /** Brings its nodes up to date: the `number`th of so `many` versions. Only the last turn can be tried again. */
  draw(isLast, number = 1, many = 1) {
    const nodes = this.#nodes;
    const isRunning = this.end === "running";
    const { thought, answer } = this;
    // Screen readers wait until an answer is complete, instead of reading pieces of words.
    nodes.article.setAttribute("aria-busy", String(isRunning));
    nodes.thought.hidden = thought.trim() === "";
    drawMarkdown(nodes.thoughtText, thought, isRunning && answer === "");
    drawMarkdown(nodes.answer, answer, isRunning);
    nodes.waiting.hidden = !isRunning || answer.trim() !== "";
    say(nodes.note, [forgottenInWords(this.forgotten), NOTES[this.end] ?? ""].join(" ").trim());
    say(nodes.stats, isRunning ? "" : statsInWords(this.stats));
    nodes.trouble.hidden = this.trouble === null;
    nodes.troubleText.textContent = this.trouble ?? "";
    nodes.retry.hidden = !isLast;
    nodes.tools.hidden = isRunning && many < 2;
    nodes.versions.hidden = many < 2;
    nodes.version.textContent = `${number}/${many}`;
    nodes.version.setAttribute("aria-label", `Version ${number} of ${many}`);
    nodes.earlier.disabled = number <= 1;
    nodes.later.disabled = number >= many;
    nodes.copy.hidden = isRunning || answer === "";
    nodes.again.hidden = isRunning;
  }

  /** Goes to the buttons of its versions, of which one was pressed on another turn. */
  focusVersions(step) {
    const { earlier, later } = this.#nodes;
    const [first, second] = step < 0 ? [earlier, later] : [later, earlier];
    (first.disabled ? second : first).focus();
  }
}

function forgottenInWords(count) {
  const turns = count === 1 ? "turn" : `${count} turns`;
  return count > 0 ? `The model is not told of the first ${turns} any more: its context has no room for more.` : "";
}

function say(node, text) {
  node.hidden = text === "";
  node.textContent = text;
}

function statsInWords(stats) {
  if (!stats || stats.first === null) {
    return "";
  }
  const { first, seconds, pieces, usage } = stats;
  const tokens = usage?.completion_tokens ?? pieces;
  const words = [`first token after ${first.toFixed(2)} s`];
  if (tokens > 1 && seconds > 0) {
    words.push(`${((tokens - 1) / seconds).toFixed(1)} tokens/s`);
  }
  words.push(tokens === 1 ? "1 token" : `${tokens} tokens`);
  if (usage) {
    const reused = usage.prompt_tokens_details?.cached_tokens ?? 0;
    words.push(`prompt of ${usage.prompt_tokens} tokens${reused > 0 ? `, ${reused} of them computed before` : ""}`);
  }
  return words.join(" · ");
}

// One question and its answer: what is known of them, and how they look.

import { drawMarkdown } from "./markdown.js";

/** What is said below an answer that did not end by itself. */
const NOTES = {
  length: "Cut off here: the answer reached its limit of tokens.",
  context: "Cut off here: the context is full. What comes next leaves out the oldest turns.",
  stopped: "Stopped here.",
};

export class Turn {
  #nodes = null;

  /** As it was kept, or with nothing but a question. */
  constructor({ question, thought = "", answer = "", end = null, trouble = null, stats = null, forgotten = 0 }) {
    this.question = question;
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

  /** Forgets the answer for another one. */
  begin() {
    Object.assign(this, { thought: "", answer: "", end: "running", trouble: null, stats: null, forgotten: 0 });
  }

  /** Makes its nodes at the end of `parent`; `again` is what Retry does. */
  mount(parent, again) {
    const made = document.getElementById("turn-template").content.cloneNode(true);
    const node = (selector) => made.querySelector(selector);
    this.#nodes = {
      article: node("[data-role=assistant]"),
      thought: node(".thought"),
      thoughtText: node(".thought > div"),
      answer: node(".answer"),
      waiting: node(".waiting"),
      note: node(".note"),
      trouble: node(".trouble"),
      troubleText: node(".trouble-text"),
      retry: node(".retry"),
      stats: node(".stats"),
    };
    node(".question").textContent = this.question;
    this.#nodes.retry.addEventListener("click", again);
    parent.append(made);
  }

  /** Brings its nodes up to date. Only the last turn can be tried again. */
  draw(isLast) {
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
    words.push(`prompt of ${usage.prompt_tokens}${reused > 0 ? `, ${reused} of them computed before` : ""}`);
  }
  return words.join(" · ");
}

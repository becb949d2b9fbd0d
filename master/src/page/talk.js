// One conversation: a tree of turns, of which one way from the root is shown. A question that is asked in other words,
// or answered again, is a turn beside the first one: its other version.

import { newId } from "./store.js";

/** Letters of a title that is made of a question. */
const TITLE = 60;

/** The fields of a conversation that nothing was said in. */
export function newConversation(fields = {}) {
  const now = Date.now();
  return { id: newId(), title: "", created: now, changed: now, system: "", options: {}, from: 0, leaf: null, ...fields };
}

/** What a conversation that begins with `question` is called until somebody names it. */
export function titleOf(question) {
  const line = question.trim().split("\n", 1)[0];
  return line.length > TITLE ? `${line.slice(0, TITLE - 1).trimEnd()}…` : line;
}

export class Talk {
  /** The AbortController of the answer that is on its way. */
  running = null;
  #turns = new Map();

  /** Of what is kept of a conversation, and its turns. */
  constructor(kept, turns = []) {
    this.kept = kept;
    turns.forEach((turn) => this.#turns.set(turn.id, turn));
  }

  get id() {
    return this.kept.id;
  }

  /** The turn of this id, if there is one. */
  turn(id) {
    return this.#turns.get(id);
  }

  /** Puts `turn` at the end of the way that is shown, below its parent. */
  add(turn) {
    this.#turns.set(turn.id, turn);
    this.kept.leaf = turn.id;
  }

  /** Takes a turn that another tab has added; goes there only if it goes on from what is shown. */
  learn(turn) {
    this.#turns.set(turn.id, turn);
    if (turn.parent === this.kept.leaf) {
      this.kept.leaf = turn.id;
    }
  }

  /** The turns that are shown, the first one first. */
  path() {
    const path = [];
    const seen = new Set(); // What is kept may be damaged: a way never goes in circles.
    let turn = this.#turns.get(this.kept.leaf) ?? this.#deepest(null);
    while (turn && !seen.has(turn.id)) {
      seen.add(turn.id);
      path.unshift(turn);
      turn = this.#turns.get(turn.parent);
    }
    return path;
  }

  /** All versions of a turn, the oldest first. */
  versions(turn) {
    return this.#below(turn.parent);
  }

  /** Shows the way that leads through `turn`, and on from there to what was said last. */
  choose(turn) {
    this.kept.leaf = (this.#deepest(turn.id) ?? turn).id;
  }

  #below(parent) {
    const turns = [...this.#turns.values()].filter((turn) => turn.parent === parent);
    return turns.sort((one, other) => one.made - other.made);
  }

  #deepest(parent) {
    const seen = new Set();
    let found = null;
    for (let next = this.#below(parent).at(-1); next && !seen.has(next.id); next = this.#below(next.id).at(-1)) {
      seen.add(next.id);
      found = next;
    }
    return found;
  }
}

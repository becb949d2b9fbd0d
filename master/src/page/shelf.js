// The models at hand: how large each is, and whether it is loaded; and how more of them are fetched.

import { Trouble, inWords, jsonLines, request } from "./api.js";
import { factsInWords } from "./models.js";
import { bytes, partsOf, say } from "./words.js";

/** What to do with a model that is there, and is not at hand. */
const UNREADABLE = "It is not among the models at hand, perhaps as it does not run here; this command says why: cake-master inspect";

/** How far a model is that is on its way; one that lost a device can be let go. */
const COMING = ["planning", "pushing", "loading"];

const byId = (id) => document.getElementById(id);

export class Shelf {
  #all = [];
  #busy = new Set(); // Names of models that are being loaded or let go from here,
  #coming = new Set(); // and of those that are being loaded, whoever asked.
  #canPull = false;
  #isLost = false; // The master tells nothing.
  #learn;

  /** `learn` asks the master for its models, which `show` is given then, and resolves with them. */
  constructor(learn) {
    this.#learn = learn;
    byId("shelf").addEventListener("toggle", () => byId("shelf").open && learn());
    byId("at-hand").addEventListener("click", (event) => {
      const button = event.target.closest("[data-part=change]");
      if (button) {
        this.#change(button.dataset.model, button.dataset.does === "unload");
      }
    });
    this.#startPull();
  }

  /** `models` as `/v1/models` describes them. */
  show(models) {
    this.#all = models;
    this.#draw();
  }

  /** Which models are being loaded, and whether the master fetches models of the Hub. */
  follow({ models, can_pull: canPull }) {
    this.#coming = new Set((models ?? []).filter(({ phase }) => COMING.includes(phase)).map(({ model }) => model));
    this.#canPull = Boolean(canPull);
    this.#isLost = false;
    byId("pull").hidden = !this.#canPull;
    this.#draw();
  }

  /** The master is gone: nobody knows what is loaded. */
  lose() {
    this.#isLost = true;
    this.#coming = new Set();
    this.#draw();
  }

  #draw() {
    byId("shelf").hidden = this.#all.length < 2 && !this.#canPull;
    const list = byId("at-hand");
    const known = new Map([...list.children].map((item) => [item.dataset.model, item]));
    const items = this.#all.map((model) => {
      const item = known.get(model.id) ?? byId("at-hand-template").content.cloneNode(true).firstElementChild;
      item.dataset.model = model.id;
      const { name, facts, change } = partsOf(item);
      const isBusy = this.#busy.has(model.id) || this.#coming.has(model.id);
      const does = model.loaded ? "Unload" : "Load";
      say(name, model.id);
      say(facts, factsInWords(this.#isLost ? { ...model, loaded: undefined } : model));
      say(change, isBusy ? "Please wait" : does);
      change.setAttribute("aria-label", `${does} ${model.id}`);
      change.disabled = isBusy || this.#isLost || model.loaded === undefined;
      change.dataset.model = model.id;
      change.dataset.does = does.toLowerCase();
      return item;
    });
    if (items.length !== list.children.length || items.some((item, at) => item !== list.children[at])) {
      list.replaceChildren(...items);
    }
  }

  /** Loads a model, or lets it go: nothing is asked of it. */
  async #change(model, isOver) {
    this.#busy.add(model);
    this.#draw();
    try {
      await request("/api/generate", { body: { model, stream: false, ...(isOver && { keep_alive: 0 }) } });
      tell(null);
    } catch (error) {
      tell(error);
    }
    await this.#learn();
    this.#busy.delete(model);
    this.#draw();
  }

  #startPull() {
    let running = null;
    byId("pull").addEventListener("submit", async (event) => {
      event.preventDefault();
      const wanted = byId("wanted");
      if (running || !wanted.reportValidity()) {
        return;
      }
      running = new AbortController();
      setPulling(true);
      tell(null);
      try {
        const name = wanted.value.trim();
        await pull(name, running.signal);
        const isThere = (await this.#learn()).some((model) => model.id === bare(name));
        wanted.value = "";
        say(byId("pull-said"), isThere ? "It is at hand." : `It was fetched. ${UNREADABLE} ${bare(name)}.`);
      } catch (error) {
        say(byId("pull-said"), error.name === "AbortError" ? "Stopped: what is there is not fetched again." : "");
        tell(error.name === "AbortError" ? null : error);
      }
      running = null;
      setPulling(false);
    });
    byId("pull-stop").addEventListener("click", () => running?.abort());
  }
}

/** A name without what other programs write around it, and without which version of it was asked for. */
function bare(name) {
  return name.replace(/^(https:\/\/)?(hf\.co|huggingface\.co)\//, "").replace(/:latest$|@.*$/, "");
}

/** Fetches a model, and says how far it is. */
async function pull(model, signal) {
  say(byId("pull-said"), "The master asks the Hub for it.");
  const { body } = await request("/api/pull", { body: { model, stream: true }, signal });
  let last = "";
  for await (const { total, completed, status } of jsonLines(body)) {
    last = status;
    const far = total > 0 ? `${bytes(completed)} of ${bytes(total)}` : status;
    byId("pulled").value = total > 0 ? completed / total : 0;
    say(byId("pull-said"), far);
  }
  if (last !== "success") {
    throw new Trouble("The master ended the connection.");
  }
}

function setPulling(isPulling) {
  byId("pulled").hidden = !isPulling;
  byId("pulled").value = 0;
  byId("pull-stop").hidden = !isPulling;
  byId("pull").querySelector("[type=submit]").hidden = isPulling;
}

/** Says what is wrong, if anything is. */
function tell(error) {
  byId("shelf-trouble").hidden = error === null;
  say(byId("shelf-trouble"), error === null ? "" : inWords(error));
}

// Which model is asked: those that the master has, and the one that was chosen.

import { servedModels } from "./api.js";
import { bytes } from "./words.js";

/** Where the browser keeps which model was asked last. */
const KEPT = "cake.model";

const byId = (id) => document.getElementById(id);

export class Models {
  #all = [];
  #asked = 0; // How often the master was asked: what it says to the last counts.
  #wanted = lastChosen(); // There may be no such model, or none yet.
  #onChange;
  #onList;

  /** `onChange` is called when another model is chosen, `onList` with what the master says of its models. */
  constructor({ onChange, onList }) {
    this.#onChange = onChange;
    this.#onList = onList;
    byId("model").addEventListener("change", () => {
      this.#wanted = byId("model").value;
      try {
        localStorage.setItem(KEPT, this.#wanted);
      } catch {
        // A browser that keeps nothing: the choice lasts as long as the page.
      }
      onChange();
    });
  }

  /** The name to ask for; undefined if none is known. */
  get chosen() {
    return byId("model").value || undefined;
  }

  /** How many tokens the chosen model's context has, if that is known. */
  get context() {
    return this.#all.find((model) => model.id === this.chosen)?.context_length;
  }

  /** Chooses `name`, or what was chosen last, as soon as there is such a model. */
  choose(name) {
    this.#wanted = name ?? lastChosen();
    this.#select();
  }

  /** Asks the master for its models. Until it says, there is the one of this name, if one is loaded, with this context. */
  async learn(name, context) {
    if (name && !this.#all.some((model) => model.id === name)) {
      this.#show([{ id: name, context_length: context }]);
    }
    await this.learnAgain();
  }

  /** Asks again, and resolves with the models: there may be other ones now. What is known stays until the master says more. */
  async learnAgain() {
    this.#asked += 1;
    const asked = this.#asked;
    try {
      const models = await servedModels();
      if (asked === this.#asked) {
        if (models.length > 0) {
          this.#show(models);
        }
        this.#onList(models);
      }
      return models;
    } catch (error) {
      console.warn(error); // Whoever asks a question is told what is wrong.
      return [];
    }
  }

  /** The master is gone: nobody knows what is loaded. */
  lose() {
    this.#show(this.#all.map((model) => ({ ...model, loaded: undefined })));
  }

  #show(models) {
    this.#all = models;
    byId("model").replaceChildren(...models.map((model) => new Option([model.id, factsInWords(model)].filter(Boolean).join(" · "), model.id)));
    byId("model").hidden = models.length < 2;
    this.#select();
  }

  #select() {
    const wanted = this.#all.find((model) => model.id === this.#wanted);
    const usual = this.#all.find((model) => model.loaded) ?? this.#all[0];
    byId("model").value = (wanted ?? usual)?.id ?? "";
    this.#onChange();
  }
}

/** How large a model is, and whether it is loaded or could be. */
export function factsInWords(model) {
  return [model.bytes > 0 && bytes(model.bytes), stateInWords(model)].filter(Boolean).join(" · ");
}

/** Whether a model is loaded, or would fit the devices that are there; empty of one of which that is not known. */
function stateInWords({ loaded, fits, needed_bytes: needed, offered_bytes: offered }) {
  if (loaded !== false) {
    return loaded ? "loaded" : "";
  }
  if (fits === false) {
    return needed > offered ? `does not fit: needs ${bytes(needed)}, offered ${bytes(offered)}` : "does not fit";
  }
  return fits ? "fits, loads when asked" : "loads when asked";
}

function lastChosen() {
  try {
    return localStorage.getItem(KEPT);
  } catch {
    return null;
  }
}

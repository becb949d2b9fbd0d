// Of which model the devices are drawn, where several are loaded.

const byId = (id) => document.getElementById(id);

export class Shown {
  #wanted = null; // Until somebody chooses, that which is furthest.

  /** `onChange` is called when another model is chosen. */
  constructor(onChange) {
    byId("shown-model").addEventListener("change", () => {
      this.#wanted = byId("shown-model").value;
      onChange();
    });
  }

  /** Offers the models that are loaded, or being loaded. */
  learn({ model, models }) {
    const all = models ?? [];
    const names = all.map((one) => (one.phase === "ready" ? one.model : `${one.model} (${one.phase})`));
    const select = byId("shown-model");
    if ([...select.options].map((option) => option.text).join("\n") !== names.join("\n")) {
      select.replaceChildren(...all.map((one, index) => new Option(names[index], one.model)));
    }
    const has = (name) => all.some((one) => one.model === name);
    this.#wanted = has(this.#wanted) ? this.#wanted : null;
    select.value = this.#wanted ?? model;
    byId("shown").hidden = all.length < 2;
  }

  /** What the cluster does, with the chain of the model that is chosen. */
  of(state) {
    const chosen = (state.models ?? []).find((one) => one.model === this.#wanted);
    return { ...state, ...chosen };
  }
}

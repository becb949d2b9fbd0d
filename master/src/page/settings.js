// What a conversation is answered with: its system message and its options, and presets of both.

/** Where the browser keeps presets, and how many it may. */
const KEPT = "cake.presets";
const MOST = 50;
/** Presets that are always there. */
const OWN = [
  { name: "As the model's files say", system: "", options: {} },
  { name: "Precise", system: "", options: { temperature: "0" } },
  { name: "Balanced", system: "", options: { temperature: "0.7", top_p: "0.9" } },
  { name: "Inventive", system: "", options: { temperature: "1.1", top_p: "0.95" } },
];

const byId = (id) => document.getElementById(id);

export class Settings {
  #options = [...document.querySelectorAll("[data-option]")];
  #presets = keptPresets();
  #onChange;

  /** `onChange` is called when somebody changed something here. */
  constructor(onChange) {
    this.#onChange = onChange;
    for (const input of [byId("system"), ...this.#options]) {
      input.addEventListener("change", () => {
        this.#showChosen();
        onChange();
      });
    }
    byId("preset").addEventListener("change", () => this.#use(this.#all()[byId("preset").value]));
    byId("preset-save").addEventListener("click", () => this.#save());
    byId("preset-delete").addEventListener("click", () => this.#delete());
    addEventListener("storage", ({ key }) => {
      if (key === KEPT) {
        this.#presets = keptPresets();
        this.#list();
      }
    });
    this.#list();
  }

  /** As a conversation keeps them: what is blank is chosen by the model's own files. */
  get() {
    const given = this.#options.filter((input) => input.value !== "");
    const options = Object.fromEntries(given.map((input) => [input.dataset.option, input.value]));
    return { system: byId("system").value, options };
  }

  show({ system = "", options = {} }) {
    byId("system").value = system;
    for (const input of this.#options) {
      input.value = options[input.dataset.option] ?? "";
    }
    this.#showChosen();
  }

  /** How many tokens a context has, if that is known. */
  setContext(tokens) {
    byId("max-tokens").max = tokens ?? "";
    byId("max-tokens-range").textContent = tokens ? `1 to ${tokens}` : "1 or more";
  }

  /** Whether the settings can be sent. Shows the first one that cannot. */
  areSound() {
    const wrong = this.#options.find((input) => !input.checkValidity());
    if (wrong) {
      byId("settings").open = true; // What is folded away cannot be pointed at.
      wrong.reportValidity();
    }
    return !wrong;
  }

  #all() {
    return [...OWN, ...this.#presets];
  }

  #use(preset) {
    if (preset) {
      this.show(preset);
      this.#onChange();
    }
  }

  #save() {
    const name = byId("preset-name").value.trim();
    if (name === "") {
      byId("preset-name").focus();
      return;
    }
    const others = this.#presets.filter((preset) => preset.name !== name);
    this.#keep([...others, { name, ...this.get() }].slice(-MOST));
    byId("preset-name").value = "";
  }

  #delete() {
    const gone = this.#all()[byId("preset").value];
    this.#keep(this.#presets.filter((preset) => preset !== gone));
    byId("preset").focus();
  }

  #keep(presets) {
    this.#presets = presets;
    try {
      localStorage.setItem(KEPT, JSON.stringify(presets));
    } catch {
      // A browser that keeps nothing: they last as long as the page.
    }
    this.#list();
  }

  #list() {
    const choices = this.#all().map(({ name }, index) => new Option(name, index));
    const own = new Option("Settings of its own", "");
    own.disabled = true;
    byId("preset").replaceChildren(own, ...choices);
    this.#showChosen();
  }

  /** Shows which preset the fields have, if they have one's. */
  #showChosen() {
    const same = (one, other) => JSON.stringify(Object.entries(one).sort()) === JSON.stringify(Object.entries(other).sort());
    const { system, options } = this.get();
    const at = this.#all().findIndex((preset) => preset.system === system && same(preset.options, options));
    byId("preset").value = at < 0 ? "" : at;
    byId("preset-delete").hidden = at < OWN.length;
  }
}

function keptPresets() {
  try {
    const kept = JSON.parse(localStorage.getItem(KEPT)) ?? [];
    return kept.filter(({ name, system, options }) => typeof name === "string" && typeof system === "string" && options);
  } catch {
    return []; // Nothing is kept, or what is kept is damaged.
  }
}

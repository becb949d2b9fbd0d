// Devices that have no layers, what can be done with each device, and what happened to them.

import { inWords } from "./api.js";
import { drain, rename, revoke, whatIf, whoJoined } from "./household.js";
import { ago, bytes, layerRange, layersInWords, machineInWords, numbersInWords, partsOf, perSecond, plainly, say, sentence } from "./words.js";

/** Milliseconds after which it is asked again who joined: who is away says nothing by itself. */
const ASK_AGAIN = 30_000;
const GIB = 2 ** 30;
/** What the master calls the device that is not there. */
const NOBODY = "another-device";

/** What a device is there for, in a word. */
const DUTIES = {
  layers: "at work",
  spare: "spare",
  draining: "freed",
  leaving: "leaving",
  paused: "paused",
  quarantined: "quarantined",
};
/** Why a device has no layers, where the plan does not say. */
const WHYS = {
  draining: "It gets no layers until you let it.",
  leaving: "It asked to go: it was told to stop, or runs low.",
};

const WHEN_LOADED = "The master takes it when a model is loaded.";
const IN_A_MOMENT = "The master takes it in a moment.";
const NOT_OWNER =
  "Devices are looked after at http://localhost on the master's machine, or with a key where the master asks for one.";

const byId = (id) => document.getElementById(id);

export class Members {
  #held = []; // Those that the master holds now.
  #layered = new Set(); // Ids of those of the chain that is shown.
  #elsewhere = new Map(); // Of those that work for other models: for which, by their ids.
  #joined = { owner: false, authority: false, members: [] };
  #awaited = []; // Those at addresses that the master was given, while no model is loaded.
  #model = undefined; // Whose chain is shown,
  #several = false; // and whether others are loaded.
  #canPlan = false;
  #isIdle = false;
  #meant = null;
  #asked = 0;

  constructor() {
    startWhatIf(() => [this.#model, this.#several]);
    this.#startDialog();
    for (const list of [byId("members"), byId("chain")]) {
      list.addEventListener("click", (event) => {
        const id = event.target.closest("[data-part=manage]")?.dataset.worker;
        if (id) {
          this.#manage(id);
        }
      });
    }
  }

  /** Whether whoever sits here may look after devices. */
  get isOwner() {
    return this.#joined.owner;
  }

  /** What a worker of this id is called. */
  nameOf(id) {
    return this.#joined.members.find((member) => member.worker_id === id && member.named)?.name;
  }

  /** `shown` is the same with the model whose chain is shown. */
  show(state, shown) {
    const before = this.#held.map(({ worker_id: id }) => id).join();
    this.#held = state.members ?? [];
    this.#awaited = state.awaited ?? [];
    this.#model = shown.model || undefined;
    this.#several = (state.models ?? []).length > 1;
    this.#canPlan = shown.phase === "ready";
    this.#isIdle = state.phase === "idle";
    this.#layered = new Set((shown.devices ?? []).map((device) => device.worker_id));
    this.#elsewhere = layersElsewhere(shown);
    const hasChanged = before !== this.#held.map(({ worker_id: id }) => id).join();
    if (hasChanged || performance.now() - this.#asked > ASK_AGAIN || this.#asked === 0) {
      this.#ask();
    }
    this.#draw();
    const all = [...this.#held, ...this.#awaited, ...this.#joined.members];
    drawHappenings(state.happened ?? [], all.map(({ name }) => name));
  }

  async #ask() {
    this.#asked = performance.now();
    try {
      this.#joined = await whoJoined();
    } catch (error) {
      console.warn(error); // What was known stays; the line at the top says if the master is gone.
      return;
    }
    byId("add").hidden = !this.#joined.owner;
    byId("not-owner").hidden = this.#joined.owner;
    say(byId("not-owner"), NOT_OWNER);
    this.#draw();
  }

  #draw() {
    const held = this.#held.filter(({ worker_id: id }) => !this.#layered.has(id)).map((member) => this.#heldInWords(member));
    const ids = new Set(this.#held.map(({ worker_id: id }) => id));
    const away = this.#joined.members.filter(({ worker_id: id }) => !ids.has(id) && !this.#layered.has(id));
    const isOut = (member) => (member.revoked ? 1 : 0);
    const then = this.#isIdle ? WHEN_LOADED : IN_A_MOMENT;
    const isOne = ({ worker_id: id, address }, other) => id === other.worker_id || address === other.name;
    // Where addresses were given, nobody else is taken; and what was heard there is newer, and may be of another place than
    // is remembered.
    const told = (one) => {
      const asked = this.#awaited.find((other) => isOne(one, other));
      const isTaken = asked || this.#awaited.length === 0;
      const { online, held_by, why, memory_bytes } = asked ?? one;
      return awayInWords({ ...one, online, held_by, why, memory_bytes: memory_bytes ?? one.memory_bytes }, isTaken ? then : "");
    };
    const joined = away.toSorted((one, other) => isOut(one) - isOut(other)).map(told);
    const awaited = this.#awaited
      .filter((other) => !away.some((one) => isOne(one, other)))
      .map((other) => awaitedInWords(other, then));
    const all = [...held, ...awaited, ...joined];
    const list = byId("members");
    const known = new Map([...list.children].map((item) => [item.dataset.worker, item]));
    const items = all.map((member) => {
      const item = known.get(member.id) ?? byId("member-template").content.cloneNode(true).firstElementChild;
      item.dataset.worker = member.id;
      item.dataset.state = member.state;
      const parts = partsOf(item);
      ["name", "state", "facts", "why"].forEach((part) => say(parts[part], member[part]));
      parts.why.hidden = member.why === "";
      this.setManage(parts.manage, member.isAwaited ? null : member.id, member.name);
      return item;
    });
    if (items.length !== list.children.length || items.some((item, at) => item !== list.children[at])) {
      list.replaceChildren(...items);
    }
    byId("others").hidden = items.length === 0;
    say(byId("others-title"), this.#elsewhere.size > 0 ? "Other devices" : "Without layers");
    byId("whatif").hidden = !this.isOwner || !this.#canPlan;
  }

  /** Shows the button to look after a worker where somebody may. */
  setManage(button, id, name) {
    button.hidden = !this.isOwner || !id;
    button.dataset.worker = id ?? "";
    button.setAttribute("aria-label", `Look after ${name}`);
  }

  #heldInWords(member) {
    const { worker_id: id, duty, why } = member;
    const works = this.#elsewhere.get(id);
    const words = works ? sentence(`it has ${works.join(", and ")}`) : why ? sentence(why) : (WHYS[duty] ?? "");
    const [name, state] = [this.nameOf(id) ?? member.name, DUTIES[duty] ?? duty];
    return { id, name, state, facts: offerInWords(member), why: words };
  }

  #startDialog() {
    const dialog = byId("device-dialog");
    const act = async (doing) => {
      byId("device-trouble").hidden = true;
      try {
        await doing();
        dialog.close();
      } catch (error) {
        say(byId("device-trouble"), inWords(error));
        byId("device-trouble").hidden = false;
      }
      this.#ask();
    };
    dialog.querySelector("form").addEventListener("submit", (event) => {
      event.preventDefault();
      act(() => rename(this.#meant, byId("device-name").value));
    });
    byId("device-drain").addEventListener("click", () => act(() => drain(this.#meant, !this.#isDraining())));
    byId("device-revoke").addEventListener("click", () => {
      byId("device-revoke").hidden = true;
      byId("device-sure").hidden = false;
      byId("device-sure").focus();
    });
    byId("device-sure").addEventListener("click", () => act(() => revoke(this.#meant)));
    byId("device-close").addEventListener("click", () => dialog.close());
  }

  #isDraining() {
    const isMeant = ({ worker_id: id }) => id === this.#meant;
    return (this.#held.find(isMeant)?.duty ?? "") === "draining" || Boolean(this.#joined.members.find(isMeant)?.draining);
  }

  #manage(id) {
    const held = this.#held.find((member) => member.worker_id === id);
    const joined = this.#joined.members.find((member) => member.worker_id === id);
    const name = joined?.name ?? held?.name ?? id;
    this.#meant = id;
    say(byId("device-title"), name);
    const ofHeld = held && [offerInWords(held), `${bytes(held.free_disk_bytes)} of disk free`, `version ${held.version}`];
    const known = [...(ofHeld ?? []), `id ${id}`];
    say(byId("device-facts"), known.join(" · "));
    byId("device-name").value = name;
    byId("device-naming").hidden = !joined || joined.revoked;
    byId("device-trouble").hidden = true;
    const isDraining = this.#isDraining();
    byId("device-drain").hidden = !held && !isDraining; // One that is away may have layers again.
    say(byId("device-drain"), isDraining ? "Let it have layers" : "Free it of layers");
    say(
      byId("device-means"),
      joined?.revoked
        ? "It is shut out. A new token lets the device join again as another one."
        : "Freed, it stays a member and its layers move to the others. Shut out, it can never come back by itself.",
    );
    byId("device-revoke").hidden = !joined || joined.revoked;
    byId("device-sure").hidden = true;
    byId("device-dialog").showModal();
  }
}

/** What devices hold of other models than the one that is shown, in words, by their ids. */
function layersElsewhere({ model, models }) {
  const all = new Map();
  for (const other of (models ?? []).filter((one) => one.model !== model)) {
    for (const { worker_id: id, layers } of other.devices ?? []) {
      const range = layerRange(layers);
      if (id && range) {
        all.set(id, [...(all.get(id) ?? []), `${layersInWords(range, Boolean(other.parts_of))} of ${other.model}`]);
      }
    }
  }
  return all;
}

function offerInWords(member) {
  return `${bytes(member.budget_bytes)} offered · ${machineInWords(member)}`;
}

function awayInWords(member, then) {
  const { worker_id: id, name, revoked, draining, online, held_by: holder, seen_seconds: seen, memory_bytes: memory } = member;
  const trouble = member.why;
  // Of one that connects by itself nobody knows while it is not held.
  const where = online ? "there" : online === null ? "not known" : "away";
  const state = revoked ? "shut out" : draining ? `${where}, freed` : where;
  const last = seen ? `last seen ${ago(Date.now() / 1000 - seen)}` : "never seen";
  const offered = memory ? `offered ${bytes(memory)}` : "";
  const why = revoked ? "" : trouble ? sentence(trouble) : !online ? "" : holder ? `Another master holds it: ${holder}.` : then;
  return { id, name, state, facts: [last, offered].filter(Boolean).join(" · "), why };
}

/** Somebody at an address that the master was given, whom it does not hold: there is nothing to be done with it yet. */
function awaitedInWords({ worker_id: id, name, online, held_by: holder, memory_bytes: memory, why }, then) {
  const facts = online ? `${bytes(memory)} offered` : "";
  const words = why ? sentence(why) : holder ? `Another master holds it: ${holder}.` : then;
  return { id: id ?? name, name, state: online ? "there" : "not usable", facts, why: words, isAwaited: true };
}

/** The latest first. A name at the beginning keeps its letters as they are. */
function drawHappenings(happened, names) {
  byId("happened").hidden = happened.length === 0;
  const isNamed = (words) => names.some((name) => words.startsWith(`${name} `));
  const texts = happened.toReversed().map(({ at_ms, words }) => {
    return [new Date(at_ms), isNamed(words) ? `${plainly(words)}.` : sentence(words)];
  });
  const list = byId("happenings");
  const seen = JSON.stringify(happened);
  if (list.dataset.seen === seen) {
    return;
  }
  list.dataset.seen = seen;
  const items = texts.map(([when, words]) => {
    const [item, time] = [document.createElement("li"), document.createElement("time")];
    time.dateTime = when.toISOString();
    time.textContent = when.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
    item.append(time, ` ${words}`);
    return item;
  });
  list.replaceChildren(...items);
}

/** Plans as if there were one more device, for the model whose chain is shown; `about` gives its name, and whether there are others. */
function startWhatIf(about) {
  byId("whatif").querySelector("form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const input = byId("imagined");
    if (!input.reportValidity()) {
      return;
    }
    const gib = Number(input.value);
    say(byId("foreseen"), "The master plans with it.");
    try {
      const [model, several] = about();
      say(byId("foreseen"), foreseenInWords(gib, await whatIf(Math.round(gib * GIB), model), several));
    } catch (error) {
      say(byId("foreseen"), inWords(error));
    }
  });
}

function foreseenInWords(gib, { model, used, before, after, stages }, several) {
  const about = several ? ` for ${model}` : "";
  if (!used) {
    return `With another device of ${gib} GiB nothing would change${about}: it would get no layers.`;
  }
  const called = (device) => (device === NOBODY ? "the new one" : device);
  const chain = stages.map(({ device, layers }) => `${called(device)} ${numbersInWords(layerRange(layers))}`);
  const speeds = [
    ["one answer alone", before.alone_seconds, after.alone_seconds],
    ["several together", before.together_seconds, after.together_seconds],
  ];
  const perToken = (seconds) => `${perSecond(1 / seconds)} tokens/s`;
  const words = speeds.map(([what, now, then]) => `${what} ${perToken(now)} now and ${perToken(then)} then`);
  return `With another device of ${gib} GiB, as predicted${about}: ${words.join("; ")}. Layers: ${chain.join(", ")}.`;
}

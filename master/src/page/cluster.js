// The cluster as a picture: its devices in the order in which a token passes them. Nodes stay, and only
// what has changed is written, so that nothing jumps under whoever reads, looks or listens.

import { bytes, duration, layerRange, layersInWords, machineInWords, partsOf, perSecond, plainly, say, sentence } from "./words.js";

/** Seconds of tokens per second that are drawn; one comes about every second. */
const SPEEDS = 60;

/** What goes on in each phase before answers can be had. */
const PHASES = {
  idle: "No model is loaded: whoever asks one has it loaded.",
  planning: "The master is planning which device gets which layers.",
  pushing: "Layers are on their way to the devices.",
  loading: "The devices are loading their layers.",
  recovering: "A device was lost: its layers move to who is left. Answers wait for that.",
};

/** Why no question can be asked now, and which share of the waiting is over, both as words. */
export function whatGoesOn({ phase, reason, devices }) {
  if (phase === "broken") {
    return { text: sentence(`The cluster is broken: ${reason ?? "a device was lost"}`), share: "" };
  }
  const pushes = (devices ?? []).map((device) => device.push).filter(Boolean);
  const total = sum(pushes.map((push) => push.total_bytes));
  const there = sum(pushes.map(bytesThere));
  const share = phase === "pushing" && total > 0 ? `${Math.floor((100 * there) / total)} %` : "";
  return { text: PHASES[phase] ?? `The cluster is ${phase}.`, share };
}

export class Cluster {
  #root;
  #members;
  #parts;
  #chain;
  #stages = []; // The parts of each device's card, in the order of the chain.
  #speeds = [];

  /** Draws below `root`; `members` knows what devices are called and who may look after them. */
  constructor(root, members) {
    this.#root = root;
    this.#members = members;
    this.#parts = partsOf(root);
    this.#chain = root.querySelector("#chain");
  }

  /** Whether what is shown may have changed unseen: then nothing of it is said to be so now. */
  setStale(isStale) {
    this.#root.toggleAttribute("data-stale", isStale);
    if (isStale) {
      this.#root.querySelectorAll(".device, #members > li").forEach((card) => {
        card.dataset.state = "unknown";
        say(card.querySelector(".state"), "not known");
      });
      const { generated, read, running, waiting, held, blocks, slots } = this.#parts;
      [generated, read, running, held, this.#parts["held-slots"]].forEach((number) => say(number, "–"));
      [waiting, blocks, slots].forEach((words) => say(words, ""));
      this.#chain.dataset.busy = "false";
    }
  }

  show(state) {
    const parts = this.#parts;
    const { phase, reason, load, rates } = state;
    const blocks = load?.kv_blocks;
    say(parts.model, state.model ?? "…");
    say(parts.facts, facts(state));
    const isUnasked = phase === "idle" && !reason; // No model is loaded, as nobody asked for one: no trouble.
    const isComing = reason === `loading ${state.model}`; // Also while it is pushed, and while the devices load it.
    const isCalm = phase === "planning" || isComing || isUnasked;
    const why = isUnasked ? PHASES.idle : reason;
    const told = [...(why ? [sentence(why)] : []), ...(state.set_aside ?? []).map(asideInWords)];
    parts.reason.hidden = told.length === 0;
    parts.reason.toggleAttribute("data-calm", isCalm && !state.set_aside?.length);
    say(parts.reason, told.join(" "));
    say(parts.generated, perSecond(rates?.generated_tokens_per_second));
    say(parts.read, perSecond(rates?.prompt_tokens_per_second));
    say(parts.running, load ? `${load.running}` : "–");
    say(parts.waiting, load ? `running, ${load.waiting} waiting` : "");
    say(parts.held, blocks ? `${blocks.held}` : "–");
    say(parts.blocks, blocks ? `of ${blocks.total} used, ${blocks.idle} kept` : "");
    const slots = load?.state_slots; // Of models with recurrent layers.
    parts["slots-tile"].hidden = !slots?.total;
    say(parts["held-slots"], slots ? `${slots.held}` : "–");
    say(parts.slots, slots ? `of ${slots.total} used, ${slots.idle} kept` : "");
    this.#drawSpeed(rates?.generated_tokens_per_second ?? 0);
    // Numbers are of all models: whose tokens pass is known where there is one.
    const isAlone = (state.models ?? []).length < 2;
    parts["of-all"].hidden = isAlone;
    this.#chain.dataset.busy = String(phase === "ready" && isAlone && (load?.steps ?? 0) > 0);
    this.#drawChain(state);
  }

  #drawSpeed(speed) {
    this.#speeds = [...this.#speeds, speed].slice(-SPEEDS);
    const most = Math.max(1, ...this.#speeds);
    const first = SPEEDS - this.#speeds.length;
    const points = this.#speeds.map((each, index) => `${first + index},${(19 - (18 * each) / most).toFixed(1)}`);
    this.#parts.speed.setAttribute("points", points.join(" "));
  }

  #drawChain({ devices, model, models, layers, parts_of: whole, reason, members }) {
    const chain = devices ?? [];
    while (this.#stages.length > chain.length) {
      this.#stages.pop().stage.remove();
    }
    while (this.#stages.length < chain.length) {
      const made = document.getElementById("device-template").content.cloneNode(true);
      const [stage, card] = [made.querySelector(".stage"), made.querySelector(".device")];
      this.#stages.push({ stage, card, ...partsOf(made) });
      this.#chain.lastElementChild.before(stage);
    }
    chain.forEach((device, index) => {
      const parts = this.#stages[index];
      // A device that cannot reach the next one hands its output to the master, which passes it on.
      const before = chain[index - 1];
      const isRelayed = before?.direct === false && !before.local;
      const hop = device.hop_seconds == null ? [] : [duration(device.hop_seconds)];
      say(parts.hop, [...hop, ...(isRelayed ? ["relayed by the master"] : [])].join(", "));
      const present = members?.find((member) => member.worker_id === device.worker_id);
      drawDevice(parts, device, layers, Boolean(whole), reason, present);
      const others = (models ?? []).filter((other) => other.model !== model);
      drawMemory(parts, device.memory, others.flatMap((other) => memoryOn(device, other)));
      const name = this.#members.nameOf(device.worker_id) ?? device.name;
      say(parts.name, name);
      this.#members.setManage(parts.manage, device.worker_id, name);
    });
  }
}

function drawDevice(parts, device, allLayers, areParts, reason, present) {
  const { name, state = "waiting", push } = device;
  const isLost = state === "lost";
  parts.card.dataset.device = name;
  const isFreed = state === "ready" && present?.duty === "draining";
  parts.card.dataset.state = state;
  say(parts.where, device.local ? "the master itself" : "");
  const isLeaving = state === "ready" && present?.duty === "leaving";
  say(parts.state, isFreed ? "being freed" : isLeaving ? "leaving" : state);
  say(parts.machine, present ? machineInWords({ ...present, processor: "" }) : "");
  parts.lost.hidden = !isLost;
  // A reason quotes the name of the device that it is about.
  const isMeant = reason?.includes(JSON.stringify(name));
  say(parts.lost, isLost ? sentence(isMeant ? reason : "the master has lost this device") : "");
  const range = layerRange(device.layers);
  say(parts.layers, layersInWords(range, areParts));
  drawPaces(parts, device);
  parts.strip.hidden = range === null || !(allLayers > 0);
  if (!parts.strip.hidden) {
    parts.strip.style.setProperty("--from", range.start / allLayers);
    parts.strip.style.setProperty("--to", range.end / allLayers);
  }
  drawPush(parts, push);
}

/** How fast a device generates and reads, each with the time of a step. */
function drawPaces(parts, device) {
  const isKnown = (rate, seconds) => rate != null && seconds != null;
  const words = (rate, seconds) => `${perSecond(rate)} tokens/s · ${duration(seconds)} a step`;
  const pace = (rate, seconds) => (isKnown(rate, seconds) ? words(rate, seconds) : "–");
  parts.paces.hidden = device.step_seconds == null;
  say(parts.decode, pace(device.decode_tokens_per_second, device.decode_seconds));
  say(parts.prefill, pace(device.prefill_tokens_per_second, device.prefill_seconds));
  say(parts.load, device.load == null ? "–" : `${Math.round(100 * device.load)} % of the time while answering`);
}

function drawPush(parts, push) {
  parts.push.hidden = !push || push.finished;
  if (parts.push.hidden) {
    return;
  }
  const { total_bytes: total, sent_bytes: sent, reused_bytes: reused } = push;
  parts.progress.max = Math.max(total, 1);
  parts.progress.value = Math.min(bytesThere(push), parts.progress.max);
  const there = reused > 0 ? `, ${bytes(reused)} were there already` : "";
  say(parts.sent, `${bytes(sent)} sent of ${bytes(Math.max(total - reused, 0))}${there}`);
}

/** What a model has planned of a device's memory, if anything. */
function memoryOn({ local, worker_id: id }, { devices }) {
  const isIt = (one) => (local ? one.local : one.worker_id === id);
  return (devices ?? []).filter(isIt).flatMap(({ memory }) => memory ?? []);
}

/** `others` is what other models have planned: the last of all plans knew what the others leave free. */
function drawMemory(parts, memory, others) {
  parts.memory.hidden = !memory;
  if (!memory) {
    return;
  }
  const { weights, kv, state } = memory;
  const beside = sum(others.map(planned));
  const amounts = { weights, kv, state, scratch: memory.scratch + memory.overhead, others: beside };
  const free = Math.max(0, Math.min(...[memory, ...others].map((one) => one.budget - planned(one))));
  const all = planned(memory) + beside + free;
  for (const [kind, amount] of Object.entries(amounts)) {
    const bar = parts.memory.querySelector(`i[data-kind=${kind}]`);
    bar.style.setProperty("--share", amount / Math.max(all, 1));
    say(parts[kind === "state" ? "state-bytes" : kind], bytes(amount));
  }
  parts["kept-state"].hidden = !state;
  parts["held-by-others"].hidden = beside === 0;
  say(parts["free-label"], `Free of ${bytes(all)}`);
  say(parts.free, bytes(free));
}

function planned({ weights, kv, state, scratch, overhead }) {
  return sum([weights, kv, state, scratch, overhead]);
}

// Words and numbers.

/** Why a worker is given no layers for now, as a sentence that begins with its name as it is. */
function asideInWords({ worker, quarantine, seconds, reason }) {
  const minutes = Math.ceil(seconds / 60);
  const how = quarantine
    ? `is in quarantine for ${minutes} minutes, or until it is started again`
    : `gets no layers for ${seconds} s`;
  return plainly(`${worker} ${how}: ${reason}.`);
}

function facts({ layers, parts_of: whole, encoding, context, parallel }) {
  const known = [
    layers > 0 && (whole ? `${whole} layers in ${layers} parts` : `${layers} layers`),
    encoding && `weights ${encoding}`,
    context > 0 && `context ${context}`,
    parallel > 0 && `room for ${parallel} of that length at once`,
  ];
  return known.filter(Boolean).join(" · ");
}

function bytesThere(push) {
  return push.sent_bytes + push.reused_bytes;
}

function sum(numbers) {
  return numbers.reduce((all, number) => all + number, 0);
}

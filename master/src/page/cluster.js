// The cluster as a picture: its devices in the order in which a token passes them. Nodes stay, and only
// what has changed is written, so that nothing jumps under whoever reads, looks or listens.

/** Seconds of tokens per second that are drawn; one comes about every second. */
const SPEEDS = 60;

/** What goes on in each phase before answers can be had. */
const PHASES = {
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
  #parts;
  #chain;
  #stages = []; // The parts of each device's card, in the order of the chain.
  #speeds = [];

  constructor(root) {
    this.#root = root;
    this.#parts = partsOf(root);
    this.#chain = root.querySelector("#chain");
  }

  /** Whether what is shown may have changed unseen. */
  setStale(isStale) {
    this.#root.toggleAttribute("data-stale", isStale);
  }

  show(state) {
    const parts = this.#parts;
    const { phase, reason, load, rates } = state;
    const blocks = load?.kv_blocks;
    say(parts.model, state.model ?? "…");
    say(parts.facts, facts(state));
    const told = [reason, ...(state.set_aside ?? []).map(asideInWords)].filter(Boolean).map(sentence);
    parts.reason.hidden = told.length === 0;
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
    this.#chain.dataset.busy = String(phase === "ready" && (load?.steps ?? 0) > 0);
    this.#drawChain(state);
  }

  #drawSpeed(speed) {
    this.#speeds = [...this.#speeds, speed].slice(-SPEEDS);
    const most = Math.max(1, ...this.#speeds);
    const first = SPEEDS - this.#speeds.length;
    const points = this.#speeds.map((each, index) => `${first + index},${(19 - (18 * each) / most).toFixed(1)}`);
    this.#parts.speed.setAttribute("points", points.join(" "));
  }

  #drawChain({ devices, layers, parts_of: whole, reason }) {
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
      drawDevice(parts, device, layers, Boolean(whole), reason);
    });
  }
}

function drawDevice(parts, device, allLayers, areParts, reason) {
  const { name, state = "waiting", push, memory } = device;
  const isLost = state === "lost";
  parts.card.dataset.device = name;
  parts.card.dataset.state = state;
  say(parts.name, name);
  say(parts.where, device.local ? "the master itself" : "");
  say(parts.state, state);
  parts.lost.hidden = !isLost;
  // A reason quotes the name of the device that it is about.
  const isMeant = reason?.includes(JSON.stringify(name));
  say(parts.lost, isLost ? sentence(isMeant ? reason : "the master has lost this device") : "");
  const range = layerRange(device.layers);
  say(parts.layers, layersInWords(range, areParts));
  say(parts.step, device.step_seconds == null ? "" : `${duration(device.step_seconds)} per step`);
  parts.strip.hidden = range === null || !(allLayers > 0);
  if (!parts.strip.hidden) {
    parts.strip.style.setProperty("--from", range.start / allLayers);
    parts.strip.style.setProperty("--to", range.end / allLayers);
  }
  drawPush(parts, push);
  drawMemory(parts, memory);
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

function drawMemory(parts, memory) {
  parts.memory.hidden = !memory;
  if (!memory) {
    return;
  }
  const { weights, kv, state } = memory;
  const amounts = { weights, kv, state, scratch: memory.scratch + memory.overhead };
  const used = sum(Object.values(amounts));
  const all = Math.max(memory.budget, used, 1);
  for (const [kind, amount] of Object.entries(amounts)) {
    const bar = parts.memory.querySelector(`i[data-kind=${kind}]`);
    bar.style.setProperty("--share", amount / all);
    say(parts[kind === "state" ? "state-bytes" : kind], bytes(amount));
  }
  parts["kept-state"].hidden = !state;
  say(parts["free-label"], `Free of ${bytes(memory.budget)}`);
  say(parts.free, bytes(Math.max(memory.budget - used, 0)));
}

/** The nodes below `root` that are written to, by their names in the page. */
function partsOf(root) {
  return Object.fromEntries([...root.querySelectorAll("[data-part]")].map((part) => [part.dataset.part, part]));
}

function say(node, text) {
  if (node.textContent !== text) {
    node.textContent = text;
  }
}

// Words and numbers.

/** Why a worker is given no layers for now. */
function asideInWords({ worker, quarantine, seconds, reason }) {
  const minutes = Math.ceil(seconds / 60);
  const how = quarantine
    ? `is in quarantine for ${minutes} minutes, or until it is started again`
    : `gets no layers for ${seconds} s`;
  return `${worker} ${how}: ${reason}`;
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

/** `0..4` as numbers, the end not being part of it; null if there is no such range. */
function layerRange(text) {
  const [, start, end] = /^(\d+)\.\.(\d+)$/.exec(text ?? "") ?? [];
  return start !== undefined && Number(start) < Number(end) ? { start: Number(start), end: Number(end) } : null;
}

function layersInWords(range, areParts) {
  const one = areParts ? "part" : "layer";
  if (range === null) {
    return `no ${one}s`;
  }
  const last = range.end - 1;
  return last === range.start ? `${one} ${last}` : `${one}s ${range.start}–${last}`;
}

function bytesThere(push) {
  return push.sent_bytes + push.reused_bytes;
}

function sum(numbers) {
  return numbers.reduce((all, number) => all + number, 0);
}

/** As the master's own command line writes them. */
function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let value = count;
  let unit = 0;
  // Compared after rounding, so that nothing reads "1024 KiB".
  while (Math.round(value) >= 1024 && unit + 1 < units.length) {
    value /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || value >= 99.95 ? 0 : 1;
  return `${value.toFixed(digits)} ${units[unit]}`;
}

function duration(seconds) {
  const milliseconds = seconds * 1000;
  if (milliseconds >= 10_000) {
    return `${seconds.toFixed(1)} s`;
  }
  return `${milliseconds.toFixed(milliseconds < 10 ? 2 : milliseconds < 100 ? 1 : 0)} ms`;
}

function perSecond(rate) {
  return rate == null ? "–" : rate.toFixed(rate < 100 ? 1 : 0);
}

/** With a capital and a stop, as whole sentences have them. */
function sentence(words) {
  const stop = /[.!?]$/.test(words) ? "" : ".";
  return `${words.charAt(0).toUpperCase()}${words.slice(1)}${stop}`;
}

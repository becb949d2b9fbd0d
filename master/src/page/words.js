// Numbers and sentences for people, each with its unit.

/** As the master's own command line writes them. */
export function bytes(count) {
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

export function duration(seconds) {
  const milliseconds = seconds * 1000;
  if (milliseconds >= 10_000) {
    return `${seconds.toFixed(1)} s`;
  }
  return `${milliseconds.toFixed(milliseconds < 10 ? 2 : milliseconds < 100 ? 1 : 0)} ms`;
}

/** How long ago something was, roughly. */
export function ago(seconds) {
  const steps = [
    [172_800, 86_400, "days"],
    [7_200, 3_600, "hours"],
    [120, 60, "minutes"],
    [2, 1, "seconds"],
  ];
  const [, size, unit] = steps.find(([from]) => seconds >= from) ?? [];
  return unit ? `${Math.floor(seconds / size)} ${unit} ago` : "now";
}

/** How full a device's battery is, if it has one and tells. */
function batteryInWords({ battery }) {
  return battery ? `battery ${battery.percent} %${battery.draining ? ", discharging" : ""}` : "";
}

/** How warm a device is, if it tells. */
function warmthInWords({ celsius }) {
  return celsius == null ? "" : `${celsius} °C`;
}

/** The system of a worker and what it computes with. */
export function machineInWords(member) {
  const { system, processor, threads } = member;
  const many = threads > 0 && `${threads} ${threads === 1 ? "thread" : "threads"}`;
  return [system, processor, many, batteryInWords(member), warmthInWords(member)].filter(Boolean).join(" · ");
}

/** A rate without its unit; a dash where none is known. */
export function perSecond(rate) {
  return rate == null ? "–" : rate.toFixed(rate < 100 ? 1 : 0);
}

/** `0..4`, the end not being part of it, as numbers; null if there is no such range. */
export function layerRange(text) {
  const [, start, end] = /^(\d+)\.\.(\d+)$/.exec(text ?? "") ?? [];
  return start !== undefined && Number(start) < Number(end) ? { start: Number(start), end: Number(end) } : null;
}

/** The numbers of a range, as people write them. */
export function numbersInWords({ start, end }) {
  return end - start === 1 ? `${start}` : `${start}–${end - 1}`;
}

/** Layers, or parts of them, with their numbers. */
export function layersInWords(range, areParts) {
  const one = areParts ? "part" : "layer";
  return range === null ? `no ${one}s` : `${range.end - range.start === 1 ? one : `${one}s`} ${numbersInWords(range)}`;
}

/** Without what libraries say of a connection that broke, which tells people nothing more. */
export function plainly(words) {
  return words.replace(/:? *(?:transport error|h2 protocol error[^;,]*|error reading a body from connection)/g, "");
}

/** With a capital and a stop, as whole sentences have them. */
export function sentence(said) {
  const words = plainly(said);
  const stop = /[.!?]$/.test(words) ? "" : ".";
  return `${words.charAt(0).toUpperCase()}${words.slice(1)}${stop}`;
}

/** Writes only what has changed, so that nothing jumps under whoever reads, and screen readers say it once. */
export function say(node, text) {
  if (node.textContent !== text) {
    node.textContent = text;
  }
}

/** The nodes below `root` that are written to, by their names in the page. */
export function partsOf(root) {
  return Object.fromEntries([...root.querySelectorAll("[data-part]")].map((part) => [part.dataset.part, part]));
}

// How another device joins: a token, as a code for its camera and as the command that is typed there.

import { inWords } from "./api.js";
import { copied } from "./copy.js";
import { invite } from "./household.js";
import { say } from "./words.js";

/** Light modules around a code, which cameras need. */
const MARGIN = 4;

const byId = (id) => document.getElementById(id);

/** Lets the button `Add a device` ask for a token and show it. */
export function startInvite() {
  byId("add").addEventListener("click", () => {
    byId("invite-dialog").showModal();
    another();
  });
  byId("invite-again").addEventListener("click", another);
}

async function another() {
  byId("invitation").hidden = true;
  byId("invite-trouble").hidden = true;
  say(byId("invite-what"), "The master makes a token.");
  try {
    show(await invite());
  } catch (error) {
    say(byId("invite-what"), "");
    say(byId("invite-trouble"), inWords(error));
    byId("invite-trouble").hidden = false;
  }
}

function show({ invitation, command, command_of_phones: ofPhones, code }) {
  const { token, ttl_seconds: seconds, master, door_open: isOpen } = invitation;
  const minutes = Math.round(seconds / 60);
  const closed = "No door is open for it now: see what the master's log says.";
  const door = isOpen ? `The master waits for it at ${master}.` : closed;
  const how = `On the device, start the worker with this token. It lets one device join, within ${minutes} minutes.`;
  say(byId("invite-what"), `${how} ${door}`);
  const commands = [
    ["Linux or macOS", command],
    ["Android (Termux), or where nobody can connect to it; with the memory that it lends", ofPhones],
    ["The token alone", token],
  ];
  byId("commands").replaceChildren(...commands.map(([system, text]) => commandFor(system, text)));
  drawCode(code);
  byId("invitation").hidden = false;
}

function commandFor(system, text) {
  const made = byId("command-template").content.cloneNode(true).firstElementChild;
  const [name, words, copy] = ["dt", "code", "button"].map((part) => made.querySelector(part));
  name.textContent = system;
  words.textContent = text;
  copy.setAttribute("aria-label", `Copy: ${system}`);
  copy.addEventListener("click", () => copied(copy, text, words));
  return made;
}

function drawCode(rows) {
  const svg = byId("code");
  svg.toggleAttribute("hidden", !rows);
  if (!rows) {
    return; // Too long for one: the commands have it.
  }
  const size = rows.length + 2 * MARGIN;
  svg.setAttribute("viewBox", `0 0 ${size} ${size}`);
  const dark = rows.flatMap((row, y) => row.map((isDark, x) => (isDark ? `M${x + MARGIN} ${y + MARGIN}h1v1h-1z` : "")));
  svg.querySelector("path").setAttribute("d", dark.join(""));
}

// The page of `cake-master serve`: a chat with a model, and the devices it runs on.
//
//   api.js       talks to the master: the key, requests, server-sent events
//   chat.js      the conversation that is shown; talk.js is its tree of turns, turn.js draws a question and its answer
//   library.js   the list of conversations, which store.js keeps in the browser and export.js writes to files
//   settings.js  what a conversation is answered with; models.js which model is asked, shelf.js those at hand
//   markdown.js  draws the blocks of an answer, inline.js what is inside a line, highlight.js the colours of code,
//                math.js formulas by the tables of symbols.js
//   cluster.js   draws the devices that have layers, and their numbers; shown.js says of which model; members.js the
//                others, and what is done with each by household.js; invite.js shows how another one joins
//   words.js     numbers and sentences for people; copy.js the clipboard
//
// Here they are joined: the cluster's events say what is shown and whether questions can be asked.

import { followCluster, onKeyNeeded } from "./api.js";
import { Chat } from "./chat.js";
import { Cluster, whatGoesOn } from "./cluster.js";
import { startInvite } from "./invite.js";
import { Library } from "./library.js";
import { Members } from "./members.js";
import { Models } from "./models.js";
import { Settings } from "./settings.js";
import { Shelf } from "./shelf.js";
import { Shown } from "./shown.js";
import { openStore } from "./store.js";

/** Where the browser keeps the colours that somebody chose. */
const THEME = "cake.theme";

const byId = (id) => document.getElementById(id);

startTheme();
startViews();
startInvite();
onKeyNeeded(askForKey);
const settings = new Settings(() => chat?.changed());
const models = new Models({
  onChange: () => {
    settings.setContext(models.context);
    chat?.changed();
  },
  onList: (all) => shelf.show(all),
});
const shelf = new Shelf(() => models.learnAgain());
const shown = new Shown(() => draw());
const members = new Members();
const cluster = new Cluster(byId("cluster"), members);
let chat = null;
let lastState = null; // What the cluster told last, while it tells anything.
let readyModel = null; // Which models were loaded when the cluster was last known to be ready.
start();

async function start() {
  const store = await openStore();
  const library = new Library(store);
  chat = new Chat({ store, settings, models, onKept: () => library.refresh() });
  await chat.open();
  byId("connect").addEventListener("click", followCluster({ onState, onDown }));
}

function onState(state) {
  showConnection("");
  byId("phase").textContent = state.phase;
  byId("phase").dataset.phase = state.phase;
  cluster.setStale(false);
  lastState = state;
  shelf.follow(state);
  shown.learn(state);
  draw();
  const { text, share } = whatGoesOn(state);
  const isReady = state.phase === "ready" || state.phase === "idle"; // Whoever asks has a model loaded.
  chat.allow(isReady, text, share);
  const loaded = [state.model, ...(state.models ?? []).map((one) => `${one.model} ${one.phase}`)].join("\n");
  if (isReady && readyModel !== loaded) {
    document.title = [state.model, "Cake"].filter(Boolean).join(" · ");
    models.learn(state.model, state.context);
  }
  readyModel = isReady ? loaded : null;
}

/** Draws the devices of the model that is chosen. */
function draw() {
  if (lastState) {
    const state = shown.of(lastState);
    members.show(lastState, state);
    cluster.show(state);
  }
}

function onDown(trouble) {
  const isLocked = trouble.status === 401;
  const why = trouble.status > 0 ? trouble.message : "Connection to the master lost.";
  readyModel = null;
  showConnection(isLocked ? why : `${why} Trying again.`);
  byId("connect").textContent = isLocked ? "Enter the key" : "Try now";
  byId("phase").textContent = isLocked ? "locked" : "not connected";
  byId("phase").dataset.phase = "down";
  cluster.setStale(true);
  shelf.lose();
  models.lose();
  chat.allow(false, isLocked ? "An API key is needed." : "Waiting for the master.");
}

byId("key-cancel").addEventListener("click", () => byId("key-dialog").close());
if (matchMedia("(hover: hover)").matches) {
  byId("prompt").focus(); // Elsewhere this would bring up a keyboard that hides half of the page.
}

/** Says in a line below the top why the picture stands still; nothing if it does not. */
function showConnection(text) {
  if (byId("connection-text").textContent !== text) {
    byId("connection-text").textContent = text;
  }
  byId("connection").toggleAttribute("data-down", text !== "");
  byId("connect").hidden = text === "";
}

/** A key from whoever sits there; null if they have none now. */
function askForKey(wasRefused) {
  const [dialog, input] = [byId("key-dialog"), byId("key")];
  byId("key-why").textContent = wasRefused
    ? "The master did not accept this key. Is there another one?"
    : "This master answers only those who bring one of its keys.";
  input.value = "";
  dialog.returnValue = ""; // It would keep the last answer if this question is closed with Escape.
  dialog.showModal();
  return new Promise((resolve) => {
    const answer = () => resolve(dialog.returnValue === "use" ? input.value.trim() || null : null);
    dialog.addEventListener("close", answer, { once: true });
  });
}

/** On narrow screens, chat and cluster take turns. */
function startViews() {
  const buttons = [...document.querySelectorAll("[data-show]")];
  for (const button of buttons) {
    button.addEventListener("click", () => {
      document.body.dataset.view = button.dataset.show;
      buttons.forEach((each) => each.setAttribute("aria-pressed", String(each === button)));
    });
  }
}

/** The system's colours, or the other ones if somebody chose them here. */
function startTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  try {
    chosen = localStorage.getItem(THEME);
  } catch {
    // A browser that keeps nothing: the choice lasts as long as the page.
  }
  const isDark = () => (chosen ? chosen === "dark" : system.matches);
  const show = () => {
    document.documentElement.dataset.theme = chosen ?? "system";
    byId("theme").setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colours`);
  };
  byId("theme").addEventListener("click", () => {
    chosen = isDark() ? "light" : "dark";
    // Whoever goes back to what the system has follows the system again.
    const isSystems = (chosen === "dark") === system.matches;
    try {
      isSystems ? localStorage.removeItem(THEME) : localStorage.setItem(THEME, chosen);
    } catch {
      // As above.
    }
    chosen = isSystems ? null : chosen;
    show();
  });
  system.addEventListener("change", show);
  show();
}

// The list of conversations: open, search, rename, export, delete. Which one a tab shows stands in its address, so that
// each tab has its own, also after it was loaded again.

import { asJson, asMarkdown, save } from "./export.js";
import { Talk } from "./talk.js";
import { say } from "./words.js";

/** Milliseconds without another letter after which a search begins. */
const SEARCH_AFTER = 150;

/** Where the list has room beside the chat, and is no drawer: as in chat.css. */
const ROOMY = matchMedia("(min-width: 75.01rem)");

const byId = (id) => document.getElementById(id);

/** The conversation that this tab shows, by its id; null for one that is to begin. */
export function shownId() {
  return /^#([0-9a-f]+)$/.exec(location.hash)?.[1] ?? null;
}

export class Library {
  #store;
  #found = null; // Ids that a search found; null if nothing is searched.
  #meant = null; // The conversation that the dialog is about.

  constructor(store) {
    this.#store = store;
    let typing = null;
    byId("search").addEventListener("input", () => {
      clearTimeout(typing);
      typing = setTimeout(() => this.refresh(), SEARCH_AFTER);
    });
    byId("new").addEventListener("click", () => {
      history.pushState(null, "", location.pathname);
      dispatchEvent(new HashChangeEvent("hashchange"));
    });
    addEventListener("hashchange", () => {
      this.#mark();
      this.#close();
    });
    say(
      byId("kept"),
      store.lasts
        ? "The latest 1,000 are kept, in this browser alone."
        : "This browser keeps nothing: conversations last as long as this page.",
    );
    ROOMY.addEventListener("change", () => this.#close());
    this.#startDialog();
    store.onChange(() => this.refresh());
    this.refresh();
  }

  /** Shows what is there now. */
  async refresh() {
    const words = byId("search").value.trim();
    this.#found = words === "" ? null : await this.#store.search(words);
    const all = await this.#store.conversations();
    const shown = all.filter(({ id }) => this.#found === null || this.#found.has(id));
    this.#draw(shown);
    const none = words === "" ? "Nothing yet: what you ask is kept here." : "Nothing has these words.";
    say(byId("none"), shown.length === 0 ? none : "");
    byId("none").hidden = shown.length > 0;
  }

  /** Nodes of conversations that are still there stay, with the focus that they may have. */
  #draw(shown) {
    const list = byId("conversations");
    const known = new Map([...list.children].map((item) => [item.dataset.id, item]));
    const items = shown.map((kept) => {
      const item = known.get(kept.id) ?? this.#made(kept.id);
      const link = item.querySelector("a");
      say(link, kept.title);
      item.querySelector("button").setAttribute("aria-label", `Rename, export or delete “${kept.title}”`);
      return item;
    });
    const isSame = items.length === list.children.length && items.every((item, at) => item === list.children[at]);
    if (!isSame) {
      const focused = document.activeElement;
      list.replaceChildren(...items);
      if (list.contains(focused)) {
        focused.focus();
      }
    }
    this.#mark();
  }

  #made(id) {
    const made = document.getElementById("conversation-template").content.cloneNode(true).querySelector("li");
    made.dataset.id = id;
    made.querySelector("a").href = `#${id}`;
    made.querySelector("a").addEventListener("click", () => this.#close());
    made.querySelector("button").addEventListener("click", () => this.#ask(id));
    return made;
  }

  #mark() {
    for (const item of byId("conversations").children) {
      const isShown = item.dataset.id === shownId();
      const link = item.querySelector("a");
      isShown ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
    }
  }

  /** The drawer, if it is one and open. */
  #close() {
    if (byId("library").matches(":popover-open")) {
      byId("library").hidePopover();
    }
  }

  #startDialog() {
    const dialog = byId("conversation-dialog");
    const does = {
      "conversation-cancel": () => {},
      "export-markdown": async ({ kept, turns }) => save(kept.title, "md", asMarkdown(kept, new Talk(kept, turns).path())),
      "export-json": async ({ kept, turns }) => save(kept.title, "json", asJson(kept, turns)),
    };
    for (const [id, act] of Object.entries(does)) {
      byId(id).addEventListener("click", async () => {
        const kept = await this.#store.conversation(this.#meant);
        dialog.close();
        if (kept) {
          await act({ kept, turns: await this.#store.turns(kept.id) });
        }
      });
    }
    byId("conversation-delete").addEventListener("click", () => {
      byId("conversation-delete").hidden = true;
      byId("conversation-sure").hidden = false;
      byId("conversation-sure").focus();
    });
    byId("conversation-sure").addEventListener("click", async () => {
      dialog.close();
      await this.#store.remove(this.#meant);
      if (shownId() === this.#meant) {
        byId("new").click();
      }
      await this.refresh();
      byId("new").focus();
    });
    dialog.querySelector("form").addEventListener("submit", async () => {
      const title = byId("title").value.trim();
      if (title !== "") {
        await this.#store.change(this.#meant, { title });
        await this.refresh();
      }
    });
  }

  async #ask(id) {
    const kept = await this.#store.conversation(id);
    if (!kept) {
      return this.refresh();
    }
    this.#meant = id;
    byId("title").value = kept.title;
    byId("conversation-delete").hidden = false;
    byId("conversation-sure").hidden = true;
    byId("conversation-dialog").showModal();
    byId("title").select();
  }
}

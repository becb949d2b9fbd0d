// What this browser keeps of conversations, in IndexedDB. A turn is a record of its own, and what is said of a
// conversation is changed field by field: two tabs add to each other's, and neither writes over what it did not see.

const NAME = "cake";
const VERSION = 1;
/** So many conversations are kept; the oldest makes room for another one. */
export const MOST_CONVERSATIONS = 1_000;

/** A name that nothing else has. (`crypto.randomUUID` is only there on pages over HTTPS and of this machine.) */
export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The store; one that lasts as long as the page where the browser keeps nothing. */
export async function openStore() {
  try {
    const opening = indexedDB.open(NAME, VERSION);
    opening.onupgradeneeded = () => {
      const database = opening.result;
      database.createObjectStore("conversations", { keyPath: "id" });
      database.createObjectStore("turns", { keyPath: "id" }).createIndex("conversation", "conversation");
    };
    return new Store(await asked(opening));
  } catch (error) {
    console.warn(error);
    return new Store(null);
  }
}

/** What a request of IndexedDB gives. */
function asked(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
    request.onblocked = () => reject(new Error("another tab holds an older form of the store"));
  });
}

class Store {
  #database;
  #memory = { conversations: new Map(), turns: new Map() }; // Where there is no database.
  #others = "BroadcastChannel" in globalThis ? new BroadcastChannel(NAME) : null;

  constructor(database) {
    this.#database = database;
    // A newer page in another tab may change its form.
    database?.addEventListener("versionchange", () => database.close());
  }

  /** Whether it outlives the page. */
  get lasts() {
    return this.#database !== null;
  }

  /** `heard(id)` is told which conversation another tab has changed. */
  onChange(heard) {
    this.#others?.addEventListener("message", ({ data }) => heard(data));
  }

  /** All conversations, the latest first. */
  async conversations() {
    const all = await this.#read("conversations");
    return all.sort((one, other) => other.changed - one.changed);
  }

  async conversation(id) {
    return (await this.#work(["conversations"], "readonly", ({ conversations }) => conversations.get(id))) ?? null;
  }

  /** The turns of one conversation, in no order. */
  async turns(id) {
    if (!this.#database) {
      return [...this.#memory.turns.values()].filter((turn) => turn.conversation === id);
    }
    const index = this.#database.transaction("turns").objectStore("turns").index("conversation");
    return asked(index.getAll(id));
  }

  /** Ids of conversations that have `words` in their title, a question or an answer. */
  async search(words) {
    const wanted = words.toLowerCase();
    const has = (...texts) => texts.some((text) => (text ?? "").toLowerCase().includes(wanted));
    const titled = (await this.#read("conversations")).filter((it) => has(it.title)).map((it) => it.id);
    const said = (await this.#read("turns")).filter((it) => has(it.question, it.answer)).map((it) => it.conversation);
    return new Set([...titled, ...said]);
  }

  /** Keeps another conversation; the oldest ones go where there are too many. */
  async add(conversation) {
    await this.#work(["conversations"], "readwrite", ({ conversations }) => conversations.put(conversation));
    const old = (await this.conversations()).slice(MOST_CONVERSATIONS);
    for (const { id } of old) {
      await this.remove(id);
    }
    this.#tell(conversation.id);
  }

  /** Changes these fields of a conversation, if it is still there. */
  async change(id, fields) {
    await this.#work(["conversations"], "readwrite", async ({ conversations }) => {
      const kept = await conversations.get(id);
      return kept && conversations.put({ ...kept, ...fields });
    });
    this.#tell(id);
  }

  /** Keeps a turn as it is now, unless its conversation was deleted. */
  async write(turn) {
    await this.#work(["conversations", "turns"], "readwrite", async ({ conversations, turns }) => {
      return (await conversations.get(turn.conversation)) && turns.put(turn);
    });
    this.#tell(turn.conversation);
  }

  async remove(id) {
    const ids = (await this.turns(id)).map((turn) => turn.id);
    await this.#work(["conversations", "turns"], "readwrite", ({ conversations, turns }) => {
      conversations.delete(id);
      return Promise.all(ids.map((turn) => turns.delete(turn)));
    });
    this.#tell(id);
  }

  #tell(id) {
    this.#others?.postMessage(id);
  }

  #read(table) {
    return this.#work([table], "readonly", (tables) => tables[table].getAll());
  }

  /** Does `work` with these tables, all of it or nothing. */
  async #work(names, mode, work) {
    if (!this.#database) {
      return work(Object.fromEntries(names.map((name) => [name, remembered(this.#memory[name])])));
    }
    const transaction = this.#database.transaction(names, mode);
    const ended = new Promise((resolve, reject) => {
      transaction.oncomplete = resolve;
      transaction.onerror = transaction.onabort = () => reject(transaction.error);
    });
    const table = (name) => {
      const store = transaction.objectStore(name);
      const calls = ["get", "getAll", "put", "delete"].map((call) => [call, (...given) => asked(store[call](...given))]);
      return [name, Object.fromEntries(calls)];
    };
    const [result] = await Promise.all([work(Object.fromEntries(names.map(table))), ended]);
    return result;
  }
}

/** A table without a database. */
function remembered(records) {
  return {
    get: async (id) => records.get(id),
    getAll: async () => [...records.values()],
    put: async (record) => records.set(record.id, structuredClone(record)),
    delete: async (id) => records.delete(id),
  };
}

// Copies text to the clipboard, and says on the button whether it did.

/** How long a button says so, in milliseconds. */
const SAID = 2_000;

/** Copies `text`; if the browser does not let us, `node`, which shows it, is selected at least. */
export async function copied(button, text, node) {
  const label = button.dataset.label ?? button.textContent;
  button.dataset.label = label;
  button.textContent = (await isCopied(text, node)) ? "Copied" : "Selected";
  setTimeout(() => {
    button.textContent = label;
  }, SAID);
}

async function isCopied(text, node) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Browsers have no clipboard for pages over plain HTTP from another machine, but this old command.
    getSelection().selectAllChildren(node);
    return document.execCommand("copy");
  }
}

// What the owner of the devices may ask of the master: who joined, tokens, names, whose layers go elsewhere.

import { request } from "./api.js";

async function answer(path, body) {
  return (await request(path, { body })).json();
}

/** `{ owner, authority, members }`: who joined, if whoever sits here is the owner. */
export const whoJoined = () => answer("/api/members");

/** A token that lets one worker join: `{ invitation, command, command_of_phones, code }`. */
export const invite = () => answer("/api/members/invite", {});
export const rename = (id, name) => answer(`/api/members/${encodeURIComponent(id)}/rename`, { name });
export const drain = (id, isDrained) => answer(`/api/members/${encodeURIComponent(id)}/drain`, { drain: isDrained });
export const revoke = (id) => answer(`/api/members/${encodeURIComponent(id)}/revoke`, {});
/** What another worker with so many bytes would change for a loaded model. */
export const whatIf = (bytes, model) => answer("/api/what-if", { bytes, model });

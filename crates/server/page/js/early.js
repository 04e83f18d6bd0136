// The graph of the session that the address names is asked for before the other modules are here.

const [, id] = /^#\/s\/([^/?]+)/.exec(location.hash) ?? [];
const address = `/api/v1/sessions/${id}/graph?results=false`;
let answer = id && !document.getElementById('data') ? fetch(address) : undefined;

/** The answer to what was asked for early, once. @param {string} to */
export function early(to) {
  if (to !== address) return undefined;
  const once = answer;
  answer = undefined;
  return once;
}

// The address of every view: a path and a query after `#`, so that one document answers all of them.

import { signal } from './dom.js';

/**
 * @typedef {object} Route
 * @property {string[]} path its parts
 * @property {Record<string, string>} query
 */

/** @param {string} hash @returns {Route} */
export function parse(hash) {
  const [path, query] = hash.replace(/^#?\/?/, '').split('?');
  /** @param {string} part */
  const decode = (part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  };
  return {
    path: path.split('/').filter(Boolean).map(decode),
    query: Object.fromEntries(new URLSearchParams(query ?? '')),
  };
}

/** The part of an address after its path. @param {Loose} query */
export function search(query) {
  const pairs = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== '');
  return pairs.length ? `?${new URLSearchParams(pairs.map(([key, value]) => [key, String(value)]))}` : '';
}

/** @param {string[]} path @param {Query} [query] */
export const href = (path, query = {}) => `#/${path.map(encodeURIComponent).join('/')}${search(query)}`;

export const route = signal(parse(location.hash));

/** Takes the address of the document as the route. */
export function readAddress() {
  route.value = parse(location.hash);
}

addEventListener('hashchange', readAddress);

/** @param {string} address */
export function go(address) {
  location.hash = address;
  // The event comes later, and until then a change of the query would take the old view's address back.
  readAddress();
}

/** Changes the query of this view, without a new entry in the history. @param {Query} changes */
export function setQuery(changes) {
  const address = href(route.value.path, { ...route.value.query, ...changes });
  if (address === location.hash) return;
  history.replaceState(null, '', address);
  route.value = parse(address);
}

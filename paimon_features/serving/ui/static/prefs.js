// What a reader prefers: theme and clock. Nothing else is kept by the browser, least of all a token.
const ALLOWED = { theme: ["auto", "light", "dark"], clock: ["utc", "local"] };

export function pref(name) {
  let found = null;
  try { found = localStorage.getItem(`paimon-features.${name}`); } catch (error) { /* not allowed here */ }
  return ALLOWED[name].includes(found) ? found : ALLOWED[name][0];
}

export function next(name) {
  const values = ALLOWED[name];
  const value = values[(values.indexOf(pref(name)) + 1) % values.length];
  try { localStorage.setItem(`paimon-features.${name}`, value); } catch (error) { memory[name] = value; }
  return value;
}
const memory = {};

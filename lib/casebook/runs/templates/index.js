// Search and filters of the index. Without scripts the page shows everything, and no controls.
const form = document.querySelector('.controls');
const items = [...document.querySelectorAll('[data-item]')].map(node => ({
  node, text: node.textContent.toLowerCase(), states: node.dataset.state.split('|'), notebook: node.dataset.notebook,
}));
const fields = [...form.elements].filter(field => field.name);
function apply() {
  const asked = Object.fromEntries(fields.map(field => [field.name, field.value.trim()]));
  const words = asked.text.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const { node, text, states, notebook } of items) {
    const fits = words.every(word => text.includes(word))
      && (!asked.state || states.includes(asked.state))
      && (!asked.notebook || notebook === asked.notebook);
    node.hidden = !fits;
    shown += fits;
  }
  for (const section of document.querySelectorAll('[data-section]'))
    section.hidden = !section.querySelector('[data-item]:not([hidden])');
  form.querySelector('output').textContent = `${shown} of ${items.length} shown`;
  const query = new URLSearchParams(Object.entries(asked).filter(([, value]) => value));
  // A link to what is shown; a page that was mailed may not change its address.
  try { history.replaceState(null, '', query.size ? `#${query}` : location.pathname); } catch { /* no link then */ }
}
const link = new URLSearchParams(location.hash.slice(1));
for (const field of fields) if (link.has(field.name)) field.value = link.get(field.name);
form.addEventListener('submit', event => event.preventDefault());
form.addEventListener('input', apply);
form.hidden = items.length === 0;
apply();

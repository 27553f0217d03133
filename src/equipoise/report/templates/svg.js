// An element of a figure; its text is set as text, never as markup.
function make(tag, attributes = {}, parent = null, text = null) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== null) element.textContent = text;
  if (parent) parent.appendChild(element);
  return element;
}

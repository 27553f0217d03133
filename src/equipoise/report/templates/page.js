// Colours: as the system, light or dark. Nothing is stored.
(() => {
  const button = document.getElementById("theme");
  const names = ["system", "light", "dark"];
  let at = 0;
  button.hidden = false;
  button.addEventListener("click", () => {
    at = (at + 1) % names.length;
    if (at) document.documentElement.dataset.theme = names[at];
    else delete document.documentElement.dataset.theme;
    button.textContent = `Colours: ${names[at]}`;
    button.setAttribute("aria-label", at ? `Colours: ${names[at]}` : "Colours: as the system");
  });
  // A link to a folded section opens it.
  const unfold = () => {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const part = target && target.querySelector(":scope > details");
    if (part) part.open = true;
  };
  addEventListener("hashchange", unfold);
  for (const link of document.querySelectorAll("nav a")) link.addEventListener("click", () => setTimeout(unfold));
  unfold();
  // What is folded on the screen is open on paper.
  const folded = [];
  addEventListener("beforeprint", () => {
    for (const part of document.querySelectorAll("details:not([open])")) { folded.push(part); part.open = true; }
  });
  addEventListener("afterprint", () => { for (const part of folded.splice(0)) part.open = false; });
})();

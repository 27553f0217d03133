// Colours: as the system, light or dark. Nothing is stored.
(() => {
  const button = document.getElementById("theme");
  const names = ["system", "light", "dark"];
  let at = 0;
  button.addEventListener("click", () => {
    at = (at + 1) % names.length;
    if (at) document.documentElement.dataset.theme = names[at];
    else delete document.documentElement.dataset.theme;
    button.textContent = `Colours: ${names[at]}`;
    button.setAttribute("aria-label", at ? `Colours: ${names[at]}` : "Colours: as the system");
  });
  // What is folded on the screen is open on paper.
  const folded = [];
  addEventListener("beforeprint", () => {
    for (const part of document.querySelectorAll("details:not([open])")) { folded.push(part); part.open = true; }
  });
  addEventListener("afterprint", () => { for (const part of folded.splice(0)) part.open = false; });
})();

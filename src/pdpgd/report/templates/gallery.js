// The gallery: filtering, ordering, and showing a limited number of cards at a time.
const Gallery = (() => {
  const list = document.getElementById("cards");
  const cards = list ? [...list.children] : [];
  const PAGE = 24;
  let room = PAGE;

  const value = (name) => {
    const control = document.querySelector(`[data-filter="${name}"]`);
    return control ? control.value.trim() : "";
  };

  function fits(card) {
    const { source, norm, sample, status, fragile } = card.dataset;
    if (value("source") && value("source") !== source) return false;
    if (value("norm") && value("norm") !== norm) return false;
    if (value("class") && value("class") !== card.dataset.class) return false;
    const wanted = value("status");
    if (wanted === "fragile" ? !fragile : wanted && wanted !== status) return false;
    const text = value("text").toLowerCase();
    if (/^#?\d+$/.test(text)) return sample === text.replace("#", "");
    return !text || card.textContent.toLowerCase().includes(text);
  }

  const orders = {
    hardest: (a, b) => b.dataset.distance - a.dataset.distance,
    easiest: (a, b) => a.dataset.distance - b.dataset.distance,
    sample: (a, b) => a.dataset.sample - b.dataset.sample,
  };

  function refresh() {
    if (!list) return;
    const order = orders[document.querySelector("[data-order]").value];
    const kind = (card) => JSON.stringify([card.dataset.norm, card.dataset.source]);
    const kinds = [...new Set(cards.map(kind))];
    // Distances of different norms are not comparable: cards are ordered within each norm and model, then interleaved.
    const rank = new Map();
    const found = cards.filter(fits);
    for (const each of kinds) {
      found.filter((card) => kind(card) === each)
        .sort((a, b) => order(a, b) || a.dataset.place - b.dataset.place)
        .forEach((card, place) => rank.set(card, place));
    }
    found.sort((a, b) => rank.get(a) - rank.get(b) || kinds.indexOf(kind(a)) - kinds.indexOf(kind(b)));
    cards.forEach((card) => { card.hidden = true; delete card.dataset.later; });
    found.forEach((card, place) => {
      card.hidden = place >= room;
      if (card.hidden) card.dataset.later = "";
    });
    list.append(...found);
    const shown = Math.min(room, found.length);
    document.getElementById("found").textContent =
      found.length === cards.length && shown === found.length ? `${cards.length} of ${cards.length} shown`
        : `${found.length} of ${cards.length} match${shown < found.length ? `, ${shown} shown` : ""}`;
    document.getElementById("more").hidden = shown >= found.length;
  }

  function begin() {
    if (!list) return;
    const form = document.querySelector(".filters");
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", () => { room = PAGE; refresh(); });
    document.getElementById("more").addEventListener("click", () => {
      const next = cards.filter((card) => !card.hidden).length;
      room += PAGE;
      refresh();
      const card = [...list.children].filter((each) => !each.hidden)[next];
      if (card) { card.tabIndex = -1; card.focus({ preventScroll: true }); }
    });
    refresh();
  }
  return { begin, refresh };
})();

const Page = { begin() { Tables.begin(); Gallery.begin(); Charts.begin(); } };

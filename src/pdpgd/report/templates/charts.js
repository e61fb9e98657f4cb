// Charts are drawn when they come into view, redrawn when the theme changes, and all drawn before printing.
const Charts = (() => {
  const specs = JSON.parse(document.getElementById("chart-data").textContent);
  const places = [...document.querySelectorAll("[data-chart]")];
  const drawn = new Set();
  const PRINTED = 680;

  function layout(spec, more) {
    return {
      ...Theme.resolved(spec.layout),
      autosize: true,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: Theme.color("@text"), size: 12, family: "system-ui, DejaVu Sans, sans-serif" },
      hoverlabel: { bgcolor: Theme.color("@back"), bordercolor: Theme.color("@line"), font: { color: Theme.color("@text") } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: Theme.color("@line"), activecolor: Theme.color("@text") },
      // On touch screens, dragging on a chart scrolls the page.
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
      ...more,
    };
  }

  function draw(place, more = {}) {
    const spec = specs[place.dataset.chart];
    const config = {
      displaylogo: false, responsive: true, displayModeBar: "hover", modeBarButtons: [["toImage", "resetScale2d"]],
      toImageButtonOptions: { filename: place.dataset.chart },
    };
    const first = !drawn.size;
    drawn.add(place);
    Plotly.react(place, Theme.resolved(spec.data), layout(spec, more), config);
    if (first) performance.mark("first-chart");
  }

  function begin() {
    const observer = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        if (entry.isIntersecting) {
          observer.unobserve(entry.target);
          if (!drawn.has(entry.target)) draw(entry.target);
        }
      }
    }, { rootMargin: "400px" });
    places.forEach((place) => observer.observe(place));
    Theme.changed(() => drawn.forEach((place) => draw(place)));

    let before = null;
    addEventListener("beforeprint", () => {
      before = { theme: Theme.current, closed: [...document.querySelectorAll("details:not([open])")] };
      before.closed.forEach((each) => { each.open = true; });
      document.querySelectorAll(".card[data-later]").forEach((card) => { card.hidden = false; });
      Theme.apply("light");
      places.forEach((place) => {
        draw(place, { width: Math.min(PRINTED, innerWidth), height: place.clientHeight, autosize: false });
      });
    });
    addEventListener("afterprint", () => {
      if (!before) return;
      before.closed.forEach((each) => { each.open = false; });
      Theme.apply(before.theme);
      if (window.Gallery) Gallery.refresh();
      before = null;
    });
  }
  return { begin };
})();

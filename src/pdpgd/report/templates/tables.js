// Tables: sorting by column, and saving as CSV with all digits.
const Tables = (() => {
  const said = document.getElementById("said");
  const forms = JSON.parse(document.getElementById("download-data").textContent);
  const byText = new Intl.Collator(undefined, { numeric: true });

  function compared(one, other) {
    // Missing values come last in either order.
    if (one === "" || other === "") return one === other ? 0 : one === "" ? Infinity : -Infinity;
    const numbers = [one, other].map((text) => (text === "inf" ? Infinity : Number(text)));
    if (numbers.some(Number.isNaN)) return byText.compare(one, other);
    return numbers[0] === numbers[1] ? 0 : numbers[0] < numbers[1] ? -1 : 1;
  }

  function sort(button) {
    const heading = button.closest("th");
    const table = button.closest("table");
    const column = [...heading.parentElement.children].indexOf(heading);
    const falling = heading.getAttribute("aria-sort") === "ascending";
    for (const each of heading.parentElement.children) each.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", falling ? "descending" : "ascending");
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row, place) => ({ row, place, value: row.cells[column].dataset.value }));
    rows.sort((a, b) => {
      const order = compared(a.value, b.value);
      return (Number.isFinite(order) ? (falling ? -order : order) : Math.sign(order)) || a.place - b.place;
    });
    body.append(...rows.map((each) => each.row));
    said.textContent = `Sorted by ${button.textContent}, ${falling ? "descending" : "ascending"}`;
  }

  function field(text) {
    // A spreadsheet would run a text that begins like a formula; table.py has the same pattern.
    const safe = /^(?:[=@\t\r]|[+-](?!\d*\.?\d+(?:[eE][+-]?\d+)?$))/.test(text) ? `'${text}` : text;
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  }

  function csv(table) {
    const headings = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.trim());
    const rows = [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.dataset.value));
    return [headings, ...rows].map((row) => row.map(field).join(",")).join("\r\n") + "\r\n";
  }

  function save(button) {
    const box = button.closest(".table");
    const ending = button.dataset.ending;
    const text = (forms[box.id] || {})[ending] || csv(box.querySelector("table"));
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/plain;charset=utf-8" }));
    link.download = `${box.id}.${ending}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  async function copy(button) {
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.dataset.command);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
    said.textContent = button.textContent;
  }

  function begin() {
    document.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (!button) return;
      if (button.matches(".sort")) sort(button);
      if (button.matches(".save")) save(button);
      if (button.matches(".copy")) copy(button);
    });
  }
  return { begin };
})();

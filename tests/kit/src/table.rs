/// Parses a table with cells separated by `|`. A row that ends with `|` continues on the next line.
pub fn rows<const CELLS: usize>(table: &str) -> Vec<[String; CELLS]> {
    let table = table.replace("|\n", "|");
    let rows = table.lines().map(str::trim).filter(|row| !row.is_empty());
    let cells = |row: &str| row.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    rows.map(|row| cells(row).try_into().expect(row)).collect()
}

//! Saving: a store's save goes through the runtime, any other `save` stays what it is.

use crate::__private::{VarStore, note, notes};
use ddp_macros::distributed;

struct Table {
    rows: usize,
    path: String,
}

impl Table {
    fn save(&mut self, path: &str) -> usize {
        self.rows += 1;
        note(format!("table {path}"));
        self.rows
    }
}

struct Once;

impl Once {
    fn save(self, n: i64) -> i64 {
        drop(self);
        n
    }
}

struct Trainer {
    vs: VarStore,
    tables: Vec<Table>,
}

impl Trainer {
    fn store(&self) -> Result<&VarStore, String> {
        note("store asked for");
        Ok(&self.vs)
    }

    #[distributed]
    fn saves(&mut self, given: &VarStore) -> Result<usize, String> {
        self.vs.save("a.ot")?;
        given.save(format!("{}.ot", "b"))?;
        self.store()?.save("c.ot")?;
        let table = &mut self.tables[0];
        let path = table.path.clone();
        let mut rows = table.save(&path);
        rows += self.tables[0].save("again");
        rows += Table { rows: 5, path: String::new() }.save("new");
        rows += usize::try_from(Once.save(1)).unwrap_or_default();
        if let Err(error) = given.save("d.ot") {
            return Err(error);
        }
        Ok(rows)
    }
}

#[test]
fn only_stores_are_saved_by_the_main_rank() {
    let tables = vec![Table { rows: 0, path: "p".to_owned() }];
    let mut trainer = Trainer { vs: VarStore("v"), tables };
    assert_eq!(trainer.saves(&VarStore("w")), Ok(1 + 2 + 6 + 1));
    let expected = [
        "enter saves",
        "register",
        "main rank saves",
        "written a.tmp",
        "main rank saves",
        "written b.tmp",
        "store asked for",
        "main rank saves",
        "written c.tmp",
        "table p",
        "table again",
        "table new",
        "main rank saves",
        "written d.tmp",
        "left",
    ];
    assert_eq!(notes(), expected);
}

//! Saving: a store's save goes through the runtime, any other `save` stays what it is.

use crate::__private::{VarStore, note, notes};
use ::std::rc::Rc;
use ::std::sync::Mutex;
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

/// A user's type that points to a store and saves by itself.
struct Model(VarStore);

impl ::std::ops::Deref for Model {
    type Target = VarStore;
    fn deref(&self) -> &VarStore {
        &self.0
    }
}

/// What a blanket trait of the user offers to every type.
trait Store {
    fn save_by_type(&self) -> u8 {
        1
    }
}
impl Store for Model {}

#[distributed]
fn through_pointers(
    locked: &Mutex<VarStore>,
    shared: &Rc<VarStore>,
    exclusive: &mut Box<VarStore>,
    model: &Model,
) -> Result<(), String> {
    locked.lock().map_err(|_| String::new())?.save("a.ot")?;
    let guard = locked.lock().map_err(|_| String::new())?;
    guard.save("b.ot")?;
    shared.save("c.ot")?;
    exclusive.0 = "again";
    exclusive.save("d.ot")?;
    (**model).save("e.ot")?;
    assert_eq!(model.save_by_type(), 1);
    #[ddp(skip)]
    model.save("f.ot")?;
    Ok(())
}

#[test]
fn stores_behind_pointers_are_stores() {
    let (locked, shared) = (Mutex::new(VarStore("a")), Rc::new(VarStore("c")));
    let done =
        through_pointers(&locked, &shared, &mut Box::new(VarStore("d")), &Model(VarStore("e")));
    assert_eq!(done, Ok(()));
    let notes = notes();
    let written: Vec<&str> =
        notes.iter().filter_map(|note| note.strip_prefix("written ")).collect();
    assert_eq!(written, ["a.tmp", "b.tmp", "c.tmp", "d.tmp", "e.tmp", "f.ot"]);
    assert_eq!(notes.iter().filter(|note| *note == "main rank saves").count(), 5);
}

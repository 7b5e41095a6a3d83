//! Places at which what is rewritten may stand: heads, arms, fields, closures, the very end.

// What nobody would write is legal.
#![allow(unused_braces)]
#![allow(clippy::all, clippy::pedantic, clippy::nursery)]

use crate::__private::{Dataset, Device, VarStore, note, notes};
use ::std::future::Future;
use ::std::rc::Rc;
use ddp_macros::distributed;

struct Run {
    store: VarStore,
    batches: Vec<i64>,
    epoch: u32,
}

#[distributed]
fn heads(data: &Dataset) -> i64 {
    let mut sum = 0;
    for x in { data.train_iter(4) } {
        sum += x;
    }
    for x in match sum {
        0 => 0..3,
        _ => 0..2,
    } {
        sum += x;
    }
    for (x, Run { epoch, .. }) in (Run { store: VarStore("a"), batches: vec![1], epoch: 2 })
        .batches
        .iter()
        .zip([Run { store: VarStore("b"), batches: vec![], epoch: 3 }])
    {
        sum += x + i64::from(epoch);
    }
    let mut left = 0..;
    while let Some(x) = { left.next() }
        && x < 2
    {
        sum += x;
    }
    for _epoch in 1.. {
        for x in data.train_iter(2).into_iter().collect::<Vec<_>>() {
            sum += x;
        }
        if sum > 0 {
            break;
        }
    }
    sum
}

#[test]
fn heads_of_loops() {
    assert_eq!(heads(&Dataset), 7);
    let noted = notes();
    let shared = noted.iter().filter(|note| *note == "shared").count();
    assert_eq!(shared, 2, "{noted:?}");
    assert!(noted.contains(&"epoch 1".to_owned()), "{noted:?}");
}

#[distributed]
fn marked(run: &mut Run, data: &Dataset) -> Result<(), String> {
    #[ddp(same)]
    'outer: loop {
        #[ddp(each)]
        'inner: while run.epoch < 3 {
            run.epoch += 1;
            if run.epoch == 2 {
                continue 'inner;
            }
            for x in data.train_iter(2) {
                run.batches.push(x)
            }
        }
        break 'outer;
    }
    #[ddp(skip)]
    let Ok(()) = run.store.save("skipped") else { return Err("let".to_owned()) };
    #[ddp(skip)]
    run.store.save("end")
}

#[test]
fn marks_on_labels_and_ends() {
    let mut run = Run { store: VarStore("a"), batches: Vec::new(), epoch: 0 };
    assert_eq!(marked(&mut run, &Dataset), Ok(()));
    let noted = notes();
    assert!(
        noted.ends_with(&["written skipped", "written end", "left"].map(str::to_owned)),
        "{noted:?}"
    );
    assert!(!noted.contains(&"shared".to_owned()), "{noted:?}");
}

#[distributed]
fn arms_and_fields(n: u8, store: &VarStore) -> Result<Run, String> {
    match n {
        0 => println! { "none" },
        1 if dbg!(n) == 1 => print!("one"),
        2..=4 => {
            eprintln!()
        }
        _ => note("many"),
    }
    let save = |path: &str| store.save(path);
    save("closure")?;
    let by_arm = match n {
        0 => store.save("arm"),
        _ => Ok(()),
    };
    by_arm.and_then(|()| store.save("then")).map(|()| Run {
        store: VarStore::new(Device::Cuda(0)),
        batches: {
            let all = Dataset.train_iter(4);
            all.into_iter().collect()
        },
        epoch: u32::from(n),
    })
}

#[test]
fn sites_in_arms_and_fields() {
    let run = arms_and_fields(0, &VarStore("a")).unwrap();
    assert_eq!((run.batches.len(), run.epoch), (2, 0));
    let noted = notes();
    let saves = noted.iter().filter(|note| *note == "main rank saves").count();
    assert_eq!((saves, noted.last().unwrap().as_str()), (3, "left"), "{noted:?}");
    assert!(noted.contains(&"println none".to_owned()), "{noted:?}");
    arms_and_fields(1, &VarStore("a")).unwrap();
    assert!(notes().contains(&"print one".to_owned()));
}

trait Job {
    type Output;

    #[distributed]
    fn by_value(self: Rc<Self>, _: &VarStore, r#mut: &mut VarStore) -> Option<Self::Output>
    where
        Self: Sized,
        Self::Output: From<&'static str>,
    {
        Some(Self::Output::from(r#mut.0))
    }

    #[distributed]
    fn later(&self) -> impl Future<Output = Result<i64, String>> + '_ {
        println!("now");
        async move {
            if self.is_done() {
                return Ok(1);
            }
            Err("later".to_owned())
        }
    }

    fn is_done(&self) -> bool;
}

impl Job for Run {
    type Output = String;

    #[distributed]
    #[inline(never)]
    fn is_done(&self) -> bool {
        match self.epoch.checked_sub(1) {
            Some(n) => Ok::<bool, ()>(n > 1),
            None => Err(()),
        }
        .is_ok_and(|done| done)
    }
}

#[distributed]
#[test]
fn a_test_may_be_distributed() {
    let run = Rc::new(Run { store: VarStore("a"), batches: Vec::new(), epoch: 0 });
    assert!(!run.is_done());
    drop(run.later());
    assert_eq!(run.by_value(&VarStore("x"), &mut VarStore("y")).as_deref(), Some("y"));
    assert!(notes().contains(&"println now".to_owned()));
}

#[distributed]
fn ends_in_const() -> usize {
    const { 2 + 3 }
}

#[distributed]
fn ends_in_a_try(text: Option<&str>) -> Option<Option<i64>> {
    Some(match text {
        Some(text) => Some(text.parse().ok()),
        None => None,
    }?)
}

#[distributed]
fn ends_in_a_loop(list: &mut Vec<i64>) {
    'all: while let Some(last) = list.pop() {
        if last == 0 {
            break 'all;
        }
    }
}

#[distributed]
fn ends_in_a_closure(n: i64) -> impl Fn(i64) -> Result<i64, String> {
    move |x| {
        if x == n {
            return Err(format!("{x} is {n}"));
        }
        Ok(x)
    }
}

#[distributed]
fn ends_in_an_assignment(n: &mut i64) {
    *n = 3
}

#[test]
fn ends_of_other_forms() {
    assert_eq!(ends_in_const(), 5);
    assert_eq!(ends_in_a_try(Some("1")), Some(Some(1)));
    assert_eq!(ends_in_a_try(None), None);
    ends_in_a_loop(&mut vec![1, 0, 2]);
    assert!(ends_in_a_closure(1)(1).is_err());
    ends_in_an_assignment(&mut 0);
    let ends: Vec<_> = notes().into_iter().filter(|note| !note.starts_with("enter")).collect();
    assert_eq!(ends, ["left", "left", "abandoned", "left", "left", "left"]);
}

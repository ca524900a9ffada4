"""Sentences: exact restoration, linear time, and the boundaries of a labelled set of texts."""

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from regard.text.sentences import SplitText, split_sentences

# Each text is written with " | " where a sentence ends.
ENGLISH = """
Hello. | How are you? | Fine!
Two dogs play in the snow.
The train was late. | We waited for an hour. | Nobody complained.
Dr. Smith met Mrs. Jones at St. Mary's Hospital. | They had coffee.
Mr. and Mrs. Brown live here. | Their house is small.
J. R. R. Tolkien wrote it. | He was a professor.
It was written by George R. R. Martin. | It is long.
Some animals, e.g. Cats and dogs, live with people. | Others do not.
He meant the capital, i.e. London. | We agreed.
The U.S. Army arrived. | It was night.
She moved to the U.S. in May. | He stayed.
He lives in the U.S. | She lives in France.
We met at 5 p.m. | The shop was closed.
We met at 5 p.m. on Monday. | The shop was closed.
See Fig. 3 for details. | It shows the results.
See No. 5 on p. 12. | It is clear.
Did he come? | No. | He was ill.
Did he come? | No. | I saw him at home.
Is it safe? | No. | A dog bit me there.
Pi is about 3.14. | That is enough.
The price rose by 2.5 percent. | Nobody bought it.
It costs $3.50. | That is cheap.
He is 21. | Tom is 22.
I am 21. | Tom is older.
In 1999 he left. | In 2001 he came back.
It happened in 1999. | Nobody knew.
The meeting is on Jan. 5 in Rome. | Please come.
“Stop!” he shouted. | Then he ran.
“Are you sure?” she whispered. | “Yes.” | He nodded.
"Go away!" the man shouted. | Nobody moved.
He replied, "I will come." | Then he left.
She whispered: 'Not now.' | He waited.
It was late (very late). | We slept.
It was late. | (It was very late.) | We slept.
What?! | You cannot be serious! | I am.
Really?? | Yes!!! | Good.
Well... | I do not know.
Well... maybe it is true. | Who knows?
Wait… | There is more.
He waited … and waited. | Then she came.
Visit www.example.com for more. | It is free.
Visit www.example.com. | It is free.
Write to jane.doe@example.com. | She will answer.
Open the file report.final.pdf. | Read it.
Version 2.0.1 is out. | Please update.
Run setup.py first. | Then run main.py.
There is no space here.So this is one sentence.
Is this the end?Perhaps not.
1. Open the door.
1. Open the door. | 2. Close the door.
a) Open the door. | b) Close the door.
(1) Open the door. | (2) Close the door.
A. Open the door.
Apple Inc. was founded in 1976. | It makes phones.
He works for Smith & Co. | The pay is good.
John Smith Jr. was there. | He spoke.
She has a Ph.D. | The thesis was long.
We sell apples, pears, etc. | Come and see.
We sell apples, pears, etc. and more. | Come and see.
The case Smith vs. Jones was closed. | Nobody won.
Louis XIV. | He was a king.
So do I. | He left.
Vitamin C. | The best of all.
i like dogs. | they are nice. | do you like them?
really? | yes.
He bought an iPhone. | iPhones are expensive.
The dog barked! | Then it slept. | What now?
Really? | – Yes. | – Good.
Great! 😀 | See you soon.
He left [...] and came back. | We saw him.
He left. [...] | Then he came back.
It (!) was there. | We saw it.
He wrote “Why?” and left. | Nobody answered.
Gen. Lee and Capt. Miller met Lt. Brown. | They talked.
That is fine by me. | Tom agrees.
Keep it in mind. | Participation is free.
**Note.** | This is important.
"""
GERMAN = """
Hallo. | Wie geht es dir? | Gut!
Ein Hund läuft über die Wiese.
Das ist z. B. Ein Problem. | Wir lösen es.
Das gilt z.B. für Hunde. | Katzen sind anders.
Er kommt, d. h. wenn er Zeit hat. | Sonst nicht.
Wir kauften Äpfel, Birnen usw. | Danach gingen wir.
Wir kauften Äpfel, Birnen usw. und gingen. | Es war spät.
Herr Dr. Müller kam mit Prof. Schmidt. | Sie sprachen lange.
Er wohnt in der Hauptstr. 5 in Berlin. | Sie wohnt nebenan.
Er kam am 3. Mai an. | Sie kam später.
Am 1. Januar beginnt das Jahr. | Alle feiern.
Der 2. Weltkrieg endete 1945. | Es war Frühling.
Sie wohnt im 3. Stock. | Der Aufzug ist kaputt.
Im 19. Jahrhundert war das anders. | Heute nicht.
Er wurde zum 2. Mal Vater. | Alle freuten sich.
Der Termin ist am 3. 5. 2024 in Bonn. | Bitte kommen Sie.
Das war 1999. | Danach kam er nicht mehr.
Das steht in Nr. 5. | Lesen Sie es.
Gemäß Art. 3 Abs. 2 ist das verboten. | Es gilt für alle.
Siehe Abb. 4 auf S. 12. | Sie ist klein.
Das Buch hat ca. 300 Seiten. | Es ist teuer.
Die Kinder bzw. Eltern kamen. | Es war voll.
Er hat evtl. Zeit. | Wir fragen ihn.
Vgl. Müller dazu. | Er hat recht.
Das war 44 v. Chr. | Danach wurde es ruhig.
„Komm!“ rief er. | Dann lief er weg.
„Kommst du?“, fragte sie. | „Nein.“ | Sie ging.
»Halt!«, rief der Mann. | Niemand blieb stehen.
Er sagte: „Ich komme.“ | Dann ging er.
Sie fragte: »Warum?« | Er schwieg.
Das kostet 3,50 Euro. | Das ist billig.
Das kostet 1.000 Euro. | Das ist teuer.
Was?! | Das glaube ich nicht!
Na ja ... | Ich weiß nicht.
Ich weiß nicht … vielleicht morgen. | Mal sehen.
Ludwig XIV. war König. | Er lebte lange.
Ludwig der XIV. Bourbone herrschte. | Er lebte lange.
Ich weiß, was Tom mag. | Wir warten.
Ich helfe dir. | Komm her.
Er arbeitet i. d. R. Montags. | Sie nicht.
Die Firma Meier & Co. liefert. | Das ist gut.
1. Öffnen Sie die Tür. | 2. Schließen Sie sie.
a) Öffnen Sie die Tür. | b) Schließen Sie sie.
Max. 5 Personen dürfen hinein. | Das gilt immer.
Der Zug hat 10 Min. Verspätung. | Wir warten.
Das kostet 5 Mio. Euro. | Das ist viel.
Schreiben Sie an info@beispiel.de. | Wir antworten.
Es war spät (sehr spät). | Wir schliefen.
Herr Präsident! | Ich danke Ihnen.
"""
FRENCH = """
Bonjour. | Comment allez-vous ? | Bien !
Deux chiens jouent dans la neige.
M. Dupont est arrivé. | Il est fatigué.
M. de Villiers et M. Le Pen sont là. | Ils parlent.
MM. Durand et Petit sont partis. | Ils reviendront.
Le Dr. Martin est absent. | Revenez demain.
« Vraiment ? » | Oui.
« Venez ! » dit-il. | Puis il partit.
Il a dit : « Je viens. » | Puis il est parti.
Elle est arrivée. | « Je suis là », dit-elle.
Les fruits, p. ex. Les pommes, sont bons. | Les légumes aussi.
Voir l'art. 3 et la fig. 2. | C'est clair.
Il est né en 44 av. J.-C. | Il est mort jeune.
Il coûte 3,50 euros. | C'est peu.
Qu'est-ce que c'est ? | Je ne sais pas.
Des pommes, des poires, etc. | Tout est frais.
Il hésite... | Puis il accepte.
Il hésite... puis accepte. | Tout va bien.
Écrivez à marie@exemple.fr. | Elle répondra.
Il est 10 h. | Le train part.
Non ! | Jamais !
Elle a 21 ans. | Il en a 22.
1. Ouvrez la porte. | 2. Fermez la porte.
Le 14 juillet 1789. | Une date connue.
"""
OTHER = """
¿Qué hora es? | Son las tres. | ¡Vamos!
Привет. | Как дела? | Хорошо.
Ciao! | Come stai?
हाँ। | नहीं।
"""
LABELLED = [line for part in (ENGLISH, GERMAN, FRENCH, OTHER) for line in part.strip().split("\n")]


@pytest.mark.parametrize("labelled", LABELLED)
def test_sentence_boundaries_match_the_labels(labelled):
    sentences = labelled.split(" | ")
    assert split_sentences(" ".join(sentences)).sentences == sentences


def test_the_labelled_set_has_more_than_120_texts():
    assert len(LABELLED) > 120


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("你好。我很好！你呢？", ["你好。", "我很好！", "你呢？"]),
        ("他说：“真的？”是的。", ["他说：“真的？”", "是的。"]),
        ("今日は。 元気です。", ["今日は。", "元気です。"]),
        ("The first line\nThe second line", ["The first line", "The second line"]),
        ("One.\r\n\r\n  Two. Three.\n", ["One.", "Two.", "Three."]),
        ("Dr.\u00a0Smith is here.\u00a0Really.", ["Dr.\u00a0Smith is here.\u00a0Really."]),
        ("  \t ", []),
        ("", []),
        ("...", ["..."]),
        ("? ! .", ["? ! ."]),
    ],
)
def test_other_separators_end_sentences(text, sentences):
    split = split_sentences(text)
    assert split.sentences == sentences
    assert split.join() == text


def test_translations_are_joined_with_the_separators_of_the_text():
    split = split_sentences("  One.  Two.\n\nThree. ")
    assert split.separators == ["  ", "  ", "\n\n", " "]
    assert split.join(["Eins.", "Zwei.", "Drei."]) == "  Eins.  Zwei.\n\nDrei. "


def test_a_space_separates_translations_of_sentences_without_separator():
    split = split_sentences("你好。再见。")
    assert split.join(["Hello.", "Goodbye."]) == "Hello. Goodbye."
    assert split.join(["今日は。", "さようなら。"]) == "今日は。さようなら。"
    assert split.join() == "你好。再见。"


def test_join_refuses_a_wrong_number_of_texts():
    with pytest.raises(ValueError, match="1 texts for 2 sentences"):
        SplitText(["One.", "Two."], ["", " ", ""]).join(["Eins."])


PARTS = st.sampled_from([
    "Hello", "the", "Dr", "z", "B", "U.S", "3", "1999", "am", "im", "Mai", "XIV", "No", "a)", "1)",
    ".", "!", "?", "…", "...", "。", "！", '"', "'", "“", "”", "„", "«", "»", "(", ")", "[", "]",
    "-", "–", ":", ",", " ", " ", " ", " ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u2028", "😀", "*", "你",
])  # fmt: skip
TEXTS = st.lists(PARTS, max_size=40).map("".join) | st.text(max_size=80)


@given(TEXTS)
@example("A! 12 foo. bar.")
@example("a. Bb\nCc. dd.")
def test_join_restores_the_text_and_sentences_are_not_split_again(text):
    split = split_sentences(text)
    assert split.join() == text
    assert len(split.separators) == len(split.sentences) + 1
    assert all(sentence and sentence == sentence.strip() for sentence in split.sentences)
    assert not "".join(split.separators).strip()
    for sentence in split.sentences:
        assert split_sentences(sentence).sentences == [sentence]


@pytest.mark.parametrize(
    "part",
    [".", ". ", '"', '" ', "(", ") ", '."', ".) ", "?! ", "…", "。", "。 ", "- ", "« ", "1. ", "a. ",
     "A. ", "z. B. ", "x. b ", "I. ", "[...] ", "\n", "\u00a0", "a", "é"],
)  # fmt: skip
def test_adversarial_text_is_split_in_linear_time(part):
    def seconds(size):
        text = part * (size // len(part))
        start = time.process_time()
        assert split_sentences(text).join() == text
        return time.process_time() - start

    assert seconds(100_000) < 1
